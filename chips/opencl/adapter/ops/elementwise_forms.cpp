// Elementwise operations of several forms: their attributes choose a row of the table or are prepared on the host.
#include <cmath>
#include <limits>

#include "elementwise.h"

namespace ocl {
namespace {

fl_status gelu(Op& op) { return elementwise(op, op.attr_int(0) != 0 ? Row::gelu_tanh : Row::gelu); }
fl_status gelu_backward(Op& op) {
  return elementwise(op, op.attr_int(0) != 0 ? Row::gelu_tanh_backward : Row::gelu_backward);
}
fl_status elu_backward(Op& op) {
  return elementwise(op, op.attr_int(3) != 0 ? Row::elu_result_backward : Row::elu_backward);
}

// A missing bound is one that changes nothing.
fl_status clamp(Op& op) {
  Attributes attributes(op.in, op, 2);
  const bool floating = (bit(op.in) & kFloatTypes) != 0;
  const int bits = 8 * size_of(op.in);
  for (int i = 0; i < 2; ++i) {
    if (op.attr_given(i)) continue;
    if (floating) {
      attributes.set(i, i == 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity());
      continue;
    }
    fl_scalar bound{};
    bound.tag = FL_SCALAR_INT;
    if (op.in == Type::UInt8) bound.v.i = i == 0 ? 0 : 255;
    else bound.v.i = i == 0 ? INT64_MIN >> (64 - bits) : INT64_MAX >> (64 - bits);
    attributes.set(i, bound);
  }
  return elementwise(op, Row::clamp, &attributes);
}

// No eps is a negative one.
template <Row which>
fl_status logit(Op& op) {
  Attributes attributes(op.in);
  attributes.set(0, op.attr_given(0) ? op.attr_float(0) : -1.0);
  return elementwise(op, which, &attributes);
}

fl_status round_decimals(Op& op) {
  const int64_t decimals = op.attr_int(0);
  Attributes attributes(op.in);
  attributes.set(0, std::pow(10.0, std::fabs(static_cast<double>(decimals))));
  return elementwise(op, decimals < 0 ? Row::round_tens : Row::round_decimals, &attributes);
}

// The usual exponents have forms of their own. PyTorch rounds the exponent to the tensor's type first.
fl_status pow_scalar(Op& op) {
  const double exponent = op.attr_float(0);
  if (exponent == 2) return elementwise(op, Row::pow_square);
  if (exponent == 3) return elementwise(op, Row::pow_cube);
  if ((bit(op.in) & kFloatTypes) != 0) {
    const bool root = op.in != Type::Float16;  // there PyTorch takes pow, whose result for -inf is not the root's
    if (exponent == 0.5 && root) return elementwise(op, Row::pow_root);
    if (exponent == -0.5 && root) return elementwise(op, Row::pow_inverse_root);
    if (exponent == -1) return elementwise(op, Row::pow_inverse);
    if (exponent == -2) return elementwise(op, Row::pow_inverse_square);
  }
  Attributes attributes(op.in, op, 1);
  attributes.round(0);
  return elementwise(op, Row::pow_scalar, &attributes);
}

OCL_KERNEL("gelu", kFloatTypes, gelu, 0, 0);
OCL_KERNEL("gelu_backward", kFloatTypes, gelu_backward, 0, 0);
OCL_KERNEL("elu_backward", kFloatTypes, elu_backward, 0, 0);
OCL_KERNEL("clamp", kRealTypes, clamp, 0, 0);
OCL_KERNEL("logit", kFloatTypes, logit<Row::logit>, 0, 0);
OCL_KERNEL("logit_backward", kFloatTypes, logit<Row::logit_backward>, 0, 0);
OCL_KERNEL("round_decimals", kFloatTypes, round_decimals, 0, 0);
OCL_KERNEL("pow_scalar", kRealTypes, pow_scalar, 0, 0);

}  // namespace
}  // namespace ocl
