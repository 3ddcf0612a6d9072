// Everything without a wrapper of its own arrives here, boxed, and takes the tiers after native.
#include <torch/library.h>

#include "bridge/route.h"

namespace fl::bridge {

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&route>()); }

}  // namespace fl::bridge
