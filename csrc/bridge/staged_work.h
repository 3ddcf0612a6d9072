// The handle of one collective that runs on the host for tensors on fl devices: it waits for the host collective,
// copies the results to the devices, and only then is complete. Which collective it is, only process_group.cpp knows.
#pragma once
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

namespace fl::bridge {

// A result on the host and the tensor it belongs in. `host` may have another type: the copy converts.
struct Landing {
  at::Tensor target;
  at::Tensor host;
};

// The first failure of a group, read by Backend::getError().
using GroupHealth = std::shared_ptr<std::atomic<c10d::ErrorType>>;

class StagedWork final : public c10d::Work {
 public:
  // Notes the devices of `results` and what their current streams have queued so far; the copies come after it.
  StagedWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> results, GroupHealth health);

  // Runs on a thread of the host backend, after the parts and before the copies.
  void before_landing(std::function<void()> step) { before_landing_ = std::move(step); }
  void land(at::Tensor target, at::Tensor host) { landings_.push_back({std::move(target), std::move(host)}); }

  // Collectives: each part has a future, the last one to complete lands the results. No part: completes at once.
  void follow(std::vector<c10::intrusive_ptr<c10d::Work>> parts);
  // Point to point: the host work has no future and progresses by itself. wait() waits for it on the caller's thread;
  // whoever polls or wants the future gets a thread that waits.
  void follow_point_to_point(c10::intrusive_ptr<c10d::Work> part);

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  uint64_t getSequencenumber() const override { return sequence_number_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  bool claim();
  void receive(std::chrono::milliseconds timeout);
  void receive_on_a_thread();
  void part_done(std::exception_ptr error);
  void conclude(std::exception_ptr error);
  void copy_results();
  std::exception_ptr explain(const std::exception_ptr& error) const;

  const char* title_;
  std::vector<at::Tensor> results_;
  std::vector<c10::Device> devices_;
  std::vector<c10::Event> ready_;  // one per device, recorded when the work was made
  std::vector<Landing> landings_;
  std::function<void()> before_landing_;
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
  std::atomic<size_t> open_parts_{0};
  std::exception_ptr part_error_;  // under mutex_
  bool unclaimed_ = false;         // under mutex_: point to point, nobody waits for the part yet
  int source_rank_ = -1;
  uint64_t sequence_number_ = 0;
  GroupHealth health_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace fl::bridge
