// c10::ScalarType <-> the core's DType and the ABI's fl_dtype.
#pragma once
#include <c10/core/ScalarType.h>

#include "core/device.h"

namespace fl::bridge {

inline DType to_dtype(c10::ScalarType type) {
  using S = c10::ScalarType;
  switch (type) {
    case S::Bool: return DType::Bool;
    case S::Byte: return DType::UInt8;
    case S::Char: return DType::Int8;
    case S::Short: return DType::Int16;
    case S::Int: return DType::Int32;
    case S::Long: return DType::Int64;
    case S::Half: return DType::Float16;
    case S::BFloat16: return DType::BFloat16;
    case S::Float: return DType::Float32;
    case S::Double: return DType::Float64;
    case S::ComplexFloat: return DType::Complex64;
    case S::ComplexDouble: return DType::Complex128;
    case S::UInt16: return DType::UInt16;
    case S::UInt32: return DType::UInt32;
    case S::UInt64: return DType::UInt64;
    default: return DType::Unsupported;
  }
}

inline fl_dtype abi_dtype(c10::ScalarType type) { return to_abi(to_dtype(type)); }

}  // namespace fl::bridge
