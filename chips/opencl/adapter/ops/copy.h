// Moving elements as they are: what copy, cat, flip and others stand on.
#pragma once
#include "elementwise.h"

namespace ocl {

// An integer type of this size: elements of one type are moved as such, whatever they stand for.
Type raw_type(Type type);

// The place of an element at this distance from the first.
fl_memory advanced(const fl_tensor& t, int64_t elements);

// Queues out = in for operands of one type, any strides (also negative ones), the same sizes.
void move_elements(Op& op, const fl_tensor& out, const fl_tensor& in);

}  // namespace ocl
