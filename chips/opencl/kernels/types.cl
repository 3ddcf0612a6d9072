// The types of tensors. First file of every program; also the start of generated kernels.
// Each type has a token: b8 u8 i8 i16 i32 i64 f16 bf16 f32 f64. For a token T (a macro that expands to one is fine):
//   MEM(T)                 what an element is in memory
//   ACC(T)                 what it is computed in: float for f16 and bf16, uchar (0 or 1) for b8, else itself
//   LOAD(T, p, i), STORE(T, p, i, value)       one element at p[i]
//   LOAD16(T, p, i), STORE16(T, p, i, value)   sixteen at p[i …]; p + i aligned to the element only
//   ACC16(T)                                   a vector of sixteen
//   CONVERT(FROM, TO, x)   as PyTorch casts
// Kernel parameters: IN(T, x), OUT(T, x) stand for a base and an offset in elements; OPERAND_IN(T, x); or
// OPERAND_OUT(T, x); at the start of the body declare the pointer x.
#ifdef HAS_FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define CAT3_(a, b, c) a##b##c
#define CAT3(a, b, c) CAT3_(a, b, c)

typedef uchar mem_b8;
typedef uchar mem_u8;
typedef char mem_i8;
typedef short mem_i16;
typedef int mem_i32;
typedef long mem_i64;
typedef half mem_f16;
typedef ushort mem_bf16;
typedef float mem_f32;

typedef uchar acc_b8;
typedef uchar acc_u8;
typedef char acc_i8;
typedef short acc_i16;
typedef int acc_i32;
typedef long acc_i64;
typedef float acc_f16;
typedef float acc_bf16;
typedef float acc_f32;

typedef uchar16 acc16_b8;
typedef uchar16 acc16_u8;
typedef char16 acc16_i8;
typedef short16 acc16_i16;
typedef int16 acc16_i32;
typedef long16 acc16_i64;
typedef float16 acc16_f16;
typedef float16 acc16_bf16;
typedef float16 acc16_f32;

#ifdef HAS_FP64
typedef double mem_f64;
typedef double acc_f64;
typedef double16 acc16_f64;
#endif

#define MEM(T) CAT(mem_, T)
#define ACC(T) CAT(acc_, T)
#define ACC16(T) CAT(acc16_, T)

// ---- plain types: memory and computing type are one

#define PLAIN_TYPE(T)                                                                                          \
  inline ACC(T) load_##T(const __global MEM(T)* p, long i) { return p[i]; }                                    \
  inline void store_##T(__global MEM(T)* p, long i, ACC(T) value) { p[i] = value; }                            \
  inline ACC16(T) load16_##T(const __global MEM(T)* p, long i) { return vload16(0, p + i); }                   \
  inline void store16_##T(__global MEM(T)* p, long i, ACC16(T) value) { vstore16(value, 0, p + i); }
PLAIN_TYPE(b8)
PLAIN_TYPE(u8)
PLAIN_TYPE(i8)
PLAIN_TYPE(i16)
PLAIN_TYPE(i32)
PLAIN_TYPE(i64)
PLAIN_TYPE(f32)
#ifdef HAS_FP64
PLAIN_TYPE(f64)
#endif

// ---- half: loaded and stored through float, so that no fp16 arithmetic is needed

inline float load_f16(const __global half* p, long i) { return vload_half(0, p + i); }
inline void store_f16(__global half* p, long i, float value) { vstore_half_rte(value, 0, p + i); }
inline float16 load16_f16(const __global half* p, long i) { return vload_half16(0, p + i); }
inline void store16_f16(__global half* p, long i, float16 value) { vstore_half16_rte(value, 0, p + i); }

// ---- bfloat16: the upper half of a float, rounded to nearest even; NaN stays NaN

inline float bf16_to_float(ushort bits) { return as_float((uint)bits << 16); }
inline ushort bf16_from_float(float value) {
  uint bits = as_uint(value);
  uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (ushort)(isnan(value) ? 0x7fc0u : rounded);
}
inline float load_bf16(const __global ushort* p, long i) { return bf16_to_float(p[i]); }
inline void store_bf16(__global ushort* p, long i, float value) { p[i] = bf16_from_float(value); }
inline float16 load16_bf16(const __global ushort* p, long i) {
  return as_float16(convert_uint16(vload16(0, p + i)) << 16);
}
inline void store16_bf16(__global ushort* p, long i, float16 value) {
  uint16 bits = as_uint16(value);
  uint16 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  vstore16(convert_ushort16(select(rounded, (uint16)0x7fc0u, isnan(value))), 0, p + i);
}

#define LOAD(T, p, i) CAT(load_, T)(p, i)
#define STORE(T, p, i, value) CAT(store_, T)(p, i, value)
#define LOAD16(T, p, i) CAT(load16_, T)(p, i)
#define STORE16(T, p, i, value) CAT(store16_, T)(p, i, value)

// ---- operands

#define IN(T, x) const __global MEM(T)*x##_base, long x##_offset
#define OUT(T, x) __global MEM(T)*x##_base, long x##_offset
#define OPERAND_IN(T, x) const __global MEM(T)* x = x##_base + x##_offset
#define OPERAND_OUT(T, x) __global MEM(T)* x = x##_base + x##_offset

// Where kernels tell that a value was wrong: see Stream::error_words().
#define ERRORS __global int*errors_base, long errors_offset
#define OPERAND_ERRORS __global int* errors = errors_base + errors_offset
#define ERROR_INDEX(errors) errors[0] = 1
#define ERROR_DIVISION(errors) errors[1] = 1

// ---- conversions between computing types, as PyTorch casts: through int64 into narrow integers, != 0 into bool

#define TO_b8(x) ((uchar)((x) != 0))
#define TO_u8(x) ((uchar)(long)(x))
#define TO_i8(x) ((char)(long)(x))
#define TO_i16(x) ((short)(long)(x))
#define TO_i32(x) ((int)(long)(x))
#define TO_i64(x) ((long)(x))
#define TO_f16(x) ((float)(x))
#define TO_bf16(x) ((float)(x))
#define TO_f32(x) ((float)(x))
#define TO_f64(x) ((double)(x))
#define CONVERT(FROM, TO, x) CAT(TO_, TO)(x)
