// "flagos", the c10d backend of fl devices: every collective is staged through host memory and run by an inner c10d
// backend for CPU tensors (gloo). Tensors that are on the CPU already go to it directly. This is the declared fallback
// until a communication library for the chips is loaded; it knows c10d, not which backend the inner one is.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "bridge/staged_work.h"

namespace fl::bridge {

class StagedBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  // Makes the inner backend of a new group.
  using HostFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
      const c10::intrusive_ptr<c10d::Store>&, int rank, int size, std::chrono::milliseconds timeout)>;

  // A type of its own, for torch.distributed.split_group copies the options of the group it splits.
  struct StagedOptions final : Options {
    explicit StagedOptions(std::chrono::milliseconds timeout) : Options("flagos", timeout) {}
  };

  StagedBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                std::chrono::milliseconds timeout, HostFactory make_host);

  const std::string getBackendName() const override { return "flagos"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  const c10::intrusive_ptr<StagedOptions>& options() const { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override { host_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return host_->getSequenceNumberForGroup(); }
  c10d::ErrorType getError() override { return *health_; }
  void abort() override { host_->abort(); }
  void shutdown() override { host_->shutdown(); }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int rank, int tag) override;
  WorkPtr recv(Tensors& tensors, int rank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  c10::intrusive_ptr<StagedWork> work(c10d::OpType type, const char* title, const Tensors& inputs,
                                      const Tensors& results) const;
  WorkPtr allreduce_staged(c10d::OpType type, const char* title, Tensors& tensors,
                           const c10d::AllreduceOptions& options);
  // inputs[i] for outputs[i]: a tensor per rank, or one tensor of which each rank gets an equal part.
  WorkPtr reduce_scatter_staged(c10d::OpType type, const char* title, Tensors& outputs, const TensorLists& inputs,
                                const c10d::ReduceScatterOptions& options);
  // Queues the host part of one all-gather; its results land with `work`.
  void allgather_part(StagedWork& work, std::vector<WorkPtr>& parts, const Tensors& outputs, const at::Tensor& input,
                      const c10d::AllgatherOptions& options);

  HostFactory make_host_;
  c10::intrusive_ptr<c10d::Backend> host_;
  c10::intrusive_ptr<StagedOptions> options_;
  GroupHealth health_;
};

// A group made without a backend name has neither a default backend nor one for the CPU: gives it ours for both.
// Does nothing for groups without a StagedBackend.
void complete_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

}  // namespace fl::bridge
