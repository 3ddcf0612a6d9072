// Mixed precision: PyTorch's own cast lists for our device; everything else passes through unchanged.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace fl::bridge {

namespace {

// The same refusal as on every other device: its half-precision gradients overflow.
at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
              "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which combine a "
              "sigmoid with the "
              "loss and are safe in half precision.");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define _KERNEL_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define _KERNEL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define _KERNEL_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define _KERNEL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  using namespace at;
  using namespace at::autocast;
  AT_FORALL_LOWER_PRECISION_FP(_KERNEL_LOWER_PRECISION)
  AT_FORALL_FP32(_KERNEL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(_KERNEL_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(_KERNEL_PROMOTE)
  m.impl("binary_cross_entropy", binary_cross_entropy_banned);
}

}  // namespace fl::bridge
