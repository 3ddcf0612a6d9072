// PyTorch's view of the core's allocators.
#pragma once
#include <c10/core/Allocator.h>

#include "core/allocator.h"

namespace fl::bridge {

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
void register_allocator();
Block* block_of(const c10::DataPtr& ptr);  // nullptr if not ours

}  // namespace fl::bridge
