// Kernels that a user adds to a device from Python (torch_fl.kernel). While some device has one, an operator's entry for
// PrivateUse1 in PyTorch's dispatcher is a switch: that device's calls go to the user's kernel, all others to what was
// there. Knows no Python: a kernel is a number, and the binding (python/user_kernel.cpp) runs it.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>

#include "core/counters.h"

namespace fl::bridge {

// Runs a kernel on the arguments that lie on the stack. False: it declined, and the stack is unchanged.
using UserKernelRunner = bool (*)(int64_t kernel, const c10::OperatorHandle& op, torch::jit::Stack* stack);
void set_user_kernel_runner(UserKernelRunner runner);

// The numbers of one operator's kernels (functional, out=, in-place) differ in the last two bits; the rest is their group.
inline int64_t user_kernel_group(int64_t kernel) { return kernel >> 2; }

// From now on `kernel` (0: none) serves an overload on a device. Raises if PyTorch has no such operator. Other threads
// must not be calling this very overload the first and the last time: PyTorch changes its tables without a lock.
void set_user_kernel(const std::string& name, const std::string& overload, int device, int64_t kernel);

// While a thread has a group in use, because one of its kernels runs or kernel.original() was called, calls of its
// operators go to what was there before.
class UserKernelInUse {
 public:
  explicit UserKernelInUse(int64_t group);
  ~UserKernelInUse();
  UserKernelInUse(const UserKernelInUse&) = delete;

 private:
  const int64_t group_;
  const UserKernelInUse* const outer_;
  friend bool user_kernel_in_use(int64_t group);
};
bool user_kernel_in_use(int64_t group);

// How many user kernels this thread is in: what they copy between host and device is theirs.
extern thread_local int user_kernel_depth;
inline void count_user_bytes(int device, uint64_t bytes) {
  if (__builtin_expect(user_kernel_depth > 0, 0)) count_bytes(device, Tier::Library, bytes);
}

// The CPU tier counts its own bytes.
class NotInUserKernel {
 public:
  NotInUserKernel() : depth_(user_kernel_depth) { user_kernel_depth = 0; }
  ~NotInUserKernel() { user_kernel_depth = depth_; }
  NotInUserKernel(const NotInUserKernel&) = delete;

 private:
  const int depth_;
};

}  // namespace fl::bridge
