// PyTorch's view of pinned host memory; pinned_allocator() is in allocator.h.
#pragma once

namespace fl::bridge {

void register_host_allocator();

}  // namespace fl::bridge
