// Completion of host-staged collectives. Results are copied on a stream of the pool that first waits for what the
// caller's stream had queued, and the host waits for that copy: a completed work needs no further ordering.
#include "bridge/staged_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>

namespace fl::bridge {

namespace {

std::vector<c10::Device> fl_devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const auto& t : tensors)
    if (t.is_privateuseone() && std::find(devices.begin(), devices.end(), t.device()) == devices.end())
      devices.push_back(t.device());
  std::sort(devices.begin(), devices.end(), [](auto a, auto b) { return a.index() < b.index(); });
  return devices;
}

}  // namespace

StagedWork::StagedWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
                       std::vector<at::Tensor> results, GroupHealth health)
    : Work(rank, type, title, inputs),
      title_(title),
      results_(std::move(results)),
      devices_(fl_devices_of(results_)),
      health_(std::move(health)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices_)) {
  for (const auto device : devices_) {
    ready_.emplace_back(device.type());
    ready_.back().record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

void StagedWork::follow(std::vector<c10::intrusive_ptr<c10d::Work>> parts) {
  if (parts.empty()) return conclude(nullptr);
  sequence_number_ = parts.front()->getSequencenumber();
  parts_ = parts;  // the local copy stays valid when the last callback clears the member
  open_parts_ = parts.size();
  auto self = c10::intrusive_ptr<StagedWork>::unsafe_reclaim_from_nonowning(this);
  for (auto& part : parts) {
    part->getFuture()->addCallback([self](c10::ivalue::Future& future) {
      self->part_done(future.hasError() ? future.exception_ptr() : nullptr);
    });
  }
}

void StagedWork::follow_point_to_point(c10::intrusive_ptr<c10d::Work> part) {
  sequence_number_ = part->getSequencenumber();
  parts_.push_back(std::move(part));
  unclaimed_ = true;
}

// True for one caller only: it has to wait for the part.
bool StagedWork::claim() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(unclaimed_, false);
}

void StagedWork::receive(std::chrono::milliseconds timeout) {
  std::exception_ptr error;
  try {
    parts_[0]->wait(timeout);
    if (opType_ == c10d::OpType::RECVANYSOURCE) source_rank_ = parts_[0]->sourceRank();
  } catch (...) {
    error = std::current_exception();
  }
  conclude(error);
}

void StagedWork::receive_on_a_thread() {
  if (!claim()) return;
  auto self = c10::intrusive_ptr<StagedWork>::unsafe_reclaim_from_nonowning(this);
  std::thread([self] { self->receive(kNoTimeout); }).detach();
}

void StagedWork::part_done(std::exception_ptr error) {
  if (error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!part_error_) part_error_ = error;
  }
  if (--open_parts_ > 0) return;
  std::unique_lock<std::mutex> lock(mutex_);
  error = part_error_;
  lock.unlock();
  conclude(error);
}

void StagedWork::conclude(std::exception_ptr error) {
  if (!error) {
    try {
      copy_results();
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (error) {
    error = explain(error);
    *health_ = c10d::ErrorType::COMM_ERROR;
  }
  landings_.clear();  // the host copies are as large as the tensors
  before_landing_ = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parts_.clear();
  }
  // Waiters first: a callback of the future may itself wait for this work.
  finish(error);
  if (error) future_->setErrorIfNeeded(error);
  else future_->markCompleted(c10::IValue(results_));
}

void StagedWork::copy_results() {
  at::AutoDispatchBelowADInplaceOrView below_autograd;  // as every backend: collectives do not touch versions or graphs
  if (before_landing_) before_landing_();
  for (const auto& landing : landings_)
    if (!landing.target.is_privateuseone()) landing.target.copy_(landing.host);
  for (size_t i = 0; i < devices_.size(); ++i) {
    c10::impl::VirtualGuardImpl impl(devices_[i].type());
    const c10::Stream stream = impl.getStreamFromGlobalPool(devices_[i]);
    c10::StreamGuard guard(stream);
    ready_[i].block(stream);
    for (const auto& landing : landings_)
      if (landing.target.device() == devices_[i]) landing.target.copy_(landing.host);
    impl.synchronizeStream(stream);
  }
}

// gloo's text names neither the collective nor the rank.
std::exception_ptr StagedWork::explain(const std::exception_ptr& error) const {
  std::string text = "unknown failure";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    text = e.what_without_backtrace();
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
  }
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(title_, " failed on rank ", rank_, " of its group, staged through gloo: ", text,
               ". If a peer is named, it has exited or does not answer: see its log")));
}

bool StagedWork::isCompleted() {
  receive_on_a_thread();
  return Work::isCompleted();
}

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  if (claim()) receive(timeout);
  return Work::wait(timeout);
}

void StagedWork::synchronize() {
  future_->wait();
}

void StagedWork::abort() {
  std::vector<c10::intrusive_ptr<c10d::Work>> parts;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    parts = parts_;
  }
  for (auto& part : parts) part->abort();
}

int StagedWork::sourceRank() const {
  TORCH_CHECK(source_rank_ >= 0, "the source rank is known for a receive from any rank, after it completed");
  return source_rank_;
}

std::vector<at::Tensor> StagedWork::result() {
  TORCH_CHECK(Work::isCompleted(), "result() of a collective that is not complete: wait() first");
  return results_;
}

c10::intrusive_ptr<c10::ivalue::Future> StagedWork::getFuture() {
  receive_on_a_thread();
  return future_;
}

}  // namespace fl::bridge
