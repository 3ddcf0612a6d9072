// The types of tensors. First file of every program; also the start of generated kernels.
// Each type has a token: b8 u8 i8 i16 i32 i64 f16 bf16 f32 f64. For a token T (a macro that expands to one is fine):
//   MEM(T)                 what an element is in memory
//   ACC(T)                 what it is computed in: float for f16 and bf16, uchar (0 or 1) for b8, else itself
//   LOAD(T, p, i), STORE(T, p, i, value)       one element at p[i]
//   LOAD16(T, p, i), STORE16(T, p, i, value)   sixteen at p[i …]; p + i aligned to the element only. LOAD4, STORE4
//   ACC16(T), ACC4(T)      vectors of sixteen, of four
//   MASK16(T), MASK4(T)    what comparing them gives: signed integers of ACC(T)'s size, 0 or -1
//   BITS16(T), BITS4(T)    unsigned integers of that size; TO_BITS16(T, x), FROM_BITS16(T, x) keep the bits
//   CONDITION16(T, x)      the MASK16(T) that is true where the ACC16(b8) x is 1; CONDITION4
//   CONVERT(FROM, TO, x)   as PyTorch casts; CONVERT16 and CONVERT4 for vectors
// Kernel parameters: IN(T, x), OUT(T, x) stand for a base and an offset in elements; OPERAND_IN(T, x); or
// OPERAND_OUT(T, x); at the start of the body declare the pointer x.
#ifdef HAS_FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define CAT3_(a, b, c) a##b##c
#define CAT3(a, b, c) CAT3_(a, b, c)

// Not `inline` alone: C99 then wants a definition elsewhere.
#define FUNCTION static inline __attribute__((overloadable))

// Before a loop over lanes that is rarely run: unrolled, it would take longer to compile than it ever saves.
#if __OPENCL_C_VERSION__ >= 200
#define ROLLED __attribute__((opencl_unroll_hint(1)))
#else
#define ROLLED
#endif

#define TYPE(T, MEMORY, COMPUTED, MASKED)                                                       \
  typedef MEMORY mem_##T;                                                                       \
  typedef COMPUTED acc_##T;                                                                     \
  TYPE_VECTORS(T, COMPUTED, MASKED, 4)                                                          \
  TYPE_VECTORS(T, COMPUTED, MASKED, 16)
#define TYPE_VECTORS(T, COMPUTED, MASKED, N)                                                    \
  typedef COMPUTED##N acc##N##_##T;                                                             \
  typedef MASKED##N mask##N##_##T;                                                              \
  typedef u##MASKED##N bits##N##_##T;                                                           \
  static inline bits##N##_##T to_bits##N##_##T(COMPUTED##N x) { return as_u##MASKED##N(x); }    \
  static inline COMPUTED##N from_bits##N##_##T(u##MASKED##N x) { return as_##COMPUTED##N(x); }  \
  static inline uchar##N to_bool##N##_##T(COMPUTED##N x) {                                      \
    return convert_uchar##N(x != (COMPUTED##N)0) & (uchar##N)1;                                 \
  }                                                                                             \
  static inline mask##N##_##T from_bool##N##_##T(uchar##N x) {                                  \
    return convert_##MASKED##N(x) != (MASKED##N)0;                                              \
  }
TYPE(b8, uchar, uchar, char)
TYPE(u8, uchar, uchar, char)
TYPE(i8, char, char, char)
TYPE(i16, short, short, short)
TYPE(i32, int, int, int)
TYPE(i64, long, long, long)
TYPE(f16, half, float, int)
TYPE(bf16, ushort, float, int)
TYPE(f32, float, float, int)
#ifdef HAS_FP64
TYPE(f64, double, double, long)
#endif

#define MEM(T) CAT(mem_, T)
#define ACC(T) CAT(acc_, T)
#define ACC4(T) CAT(acc4_, T)
#define ACC16(T) CAT(acc16_, T)
#define MASK4(T) CAT(mask4_, T)
#define MASK16(T) CAT(mask16_, T)
#define BITS4(T) CAT(bits4_, T)
#define BITS16(T) CAT(bits16_, T)
#define TO_BITS4(T, x) CAT(to_bits4_, T)(x)
#define TO_BITS16(T, x) CAT(to_bits16_, T)(x)
#define FROM_BITS4(T, x) CAT(from_bits4_, T)(x)
#define FROM_BITS16(T, x) CAT(from_bits16_, T)(x)
#define CONDITION4(T, x) CAT(from_bool4_, T)(x)
#define CONDITION16(T, x) CAT(from_bool16_, T)(x)

// Kernels that say how many LANES they take at a time (16 on a CPU, 4 on a GPU) may use these.
#ifdef LANES
#define WIDE(name) CAT(name, LANES)
#define ACCV(T) WIDE(ACC)(T)
#define MASKV(T) WIDE(MASK)(T)
#define BITSV(T) WIDE(BITS)(T)
#define TO_BITSV(T, x) WIDE(TO_BITS)(T, x)
#define FROM_BITSV(T, x) WIDE(FROM_BITS)(T, x)
#define CONDITIONV(T, x) WIDE(CONDITION)(T, x)
#define LOADV(T, p, i) WIDE(LOAD)(T, p, i)
#define STOREV(T, p, i, value) WIDE(STORE)(T, p, i, value)
#define CONVERTV(FROM, TO, x) WIDE(CONVERT)(FROM, TO, x)
#if LANES == 16
#define LANE_NUMBERS (long16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#else
#define LANE_NUMBERS (long4)(0, 1, 2, 3)
#endif
#endif

// ---- vectors in memory, aligned to the element only: PoCL's vstore16 of small types goes through scalars

#ifdef __clang__
#define PACKED_VECTOR(T, N) typedef T##N packed_##T##N __attribute__((aligned(sizeof(T))));
#define VLOAD(T, N, p) (*(const __global packed_##T##N*)(p))
#define VSTORE(T, N, value, p) (*(__global packed_##T##N*)(p) = (value))
#else
#define PACKED_VECTOR(T, N)
#define VLOAD(T, N, p) vload##N(0, p)
#define VSTORE(T, N, value, p) vstore##N(value, 0, p)
#endif

// ---- plain types: memory and computing type are one

#define PLAIN_TYPE(T, C)                                                                                   \
  static inline C load_##T(const __global C* p, long i) { return p[i]; }                                   \
  static inline void store_##T(__global C* p, long i, C value) { p[i] = value; }                           \
  static inline C##4 load4_##T(const __global C* p, long i) { return VLOAD(C, 4, p + i); }                 \
  static inline void store4_##T(__global C* p, long i, C##4 value) { VSTORE(C, 4, value, p + i); }         \
  static inline C##16 load16_##T(const __global C* p, long i) { return VLOAD(C, 16, p + i); }              \
  static inline void store16_##T(__global C* p, long i, C##16 value) { VSTORE(C, 16, value, p + i); }
#define PACKED_VECTORS(T) PACKED_VECTOR(T, 4) PACKED_VECTOR(T, 16)
PACKED_VECTORS(uchar)
PACKED_VECTORS(char)
PACKED_VECTORS(short)
PACKED_VECTORS(ushort)
PACKED_VECTORS(int)
PACKED_VECTORS(long)
PACKED_VECTORS(float)
PLAIN_TYPE(b8, uchar)
PLAIN_TYPE(u8, uchar)
PLAIN_TYPE(i8, char)
PLAIN_TYPE(i16, short)
PLAIN_TYPE(i32, int)
PLAIN_TYPE(i64, long)
PLAIN_TYPE(f32, float)
#ifdef HAS_FP64
PACKED_VECTORS(double)
PLAIN_TYPE(f64, double)
#endif

// ---- half: loaded and stored through float, so that no fp16 arithmetic is needed

static inline float load_f16(const __global half* p, long i) { return vload_half(0, p + i); }
static inline void store_f16(__global half* p, long i, float value) { vstore_half_rte(value, 0, p + i); }
// Several at once go through an aligned copy: PoCL 3 takes the address of vload_half16 and vstore_half16 to be aligned
// and ends the process where it then moves a whole vector, e.g. in a loop that stores one value everywhere.
#define HALF_VECTORS(N)                                                              \
  static inline float##N load##N##_f16(const __global half* p, long i) {             \
    const ushort##N bits = VLOAD(ushort, N, (const __global ushort*)(p + i));        \
    return vload_half##N(0, (const half*)&bits);                                     \
  }                                                                                  \
  static inline void store##N##_f16(__global half* p, long i, float##N value) {      \
    ushort##N bits;                                                                  \
    vstore_half##N##_rte(value, 0, (half*)&bits);                                    \
    VSTORE(ushort, N, bits, (__global ushort*)(p + i));                              \
  }
HALF_VECTORS(4)
HALF_VECTORS(16)

// ---- bfloat16: the upper half of a float, rounded to nearest even; NaN stays NaN

static inline float bf16_to_float(ushort bits) { return as_float((uint)bits << 16); }
static inline ushort bf16_from_float(float value) {
  uint bits = as_uint(value);
  uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (ushort)(isnan(value) ? 0x7fc0u : rounded);
}
static inline float load_bf16(const __global ushort* p, long i) { return bf16_to_float(p[i]); }
static inline void store_bf16(__global ushort* p, long i, float value) { p[i] = bf16_from_float(value); }
#define BF16_VECTORS(N)                                                             \
  static inline float##N load##N##_bf16(const __global ushort* p, long i) {         \
    return as_float##N(convert_uint##N(VLOAD(ushort, N, p + i)) << 16);             \
  }                                                                                 \
  static inline void store##N##_bf16(__global ushort* p, long i, float##N value) {  \
    uint##N bits = as_uint##N(value);                                               \
    uint##N rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;                 \
    rounded = value != value ? (uint##N)0x7fc0u : rounded;                          \
    VSTORE(ushort, N, convert_ushort##N(rounded), p + i);                           \
  }
BF16_VECTORS(4)
BF16_VECTORS(16)

#define LOAD(T, p, i) CAT(load_, T)(p, i)
#define STORE(T, p, i, value) CAT(store_, T)(p, i, value)
#define LOAD4(T, p, i) CAT(load4_, T)(p, i)
#define STORE4(T, p, i, value) CAT(store4_, T)(p, i, value)
#define LOAD16(T, p, i) CAT(load16_, T)(p, i)
#define STORE16(T, p, i, value) CAT(store16_, T)(p, i, value)

// ---- prefetch, where the compiler has it: the processor's own stops at the end of each page of 4096 bytes

#ifdef __has_builtin
#if __has_builtin(__builtin_prefetch)
#define PREFETCH(p) __builtin_prefetch((const void*)(size_t)(p))
#endif
#endif
#ifndef PREFETCH
#define PREFETCH(p)
#endif

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

// ---- conversions between computing types, as PyTorch casts: != 0 into bool; into narrow integers through a wide one

#define TO_b8(x) ((uchar)((x) != 0))
#define TO_u8(x) ((uchar)(int)(x))
#define TO_i8(x) ((char)(int)(x))
#define TO_i16(x) ((short)(int)(x))
#define TO_i32(x) ((int)(x))
#define TO_i64(x) ((long)(x))
#define TO_f16(x) ((float)(x))
#define TO_bf16(x) ((float)(x))
#define TO_f32(x) ((float)(x))
#define TO_f64(x) ((double)(x))
#define CONVERT(FROM, TO, x) CAT(TO_, TO)(x)

#define TO4_b8(FROM, x) CAT(to_bool4_, FROM)(x)
#define TO4_u8(FROM, x) convert_uchar4(convert_int4(x))
#define TO4_i8(FROM, x) convert_char4(convert_int4(x))
#define TO4_i16(FROM, x) convert_short4(convert_int4(x))
#define TO4_i32(FROM, x) convert_int4(x)
#define TO4_i64(FROM, x) convert_long4(x)
#define TO4_f16(FROM, x) convert_float4(x)
#define TO4_bf16(FROM, x) convert_float4(x)
#define TO4_f32(FROM, x) convert_float4(x)
#define TO4_f64(FROM, x) convert_double4(x)
#define CONVERT4(FROM, TO, x) CAT(TO4_, TO)(FROM, x)
#define TO16_b8(FROM, x) CAT(to_bool16_, FROM)(x)
#define TO16_u8(FROM, x) convert_uchar16(convert_int16(x))
#define TO16_i8(FROM, x) convert_char16(convert_int16(x))
#define TO16_i16(FROM, x) convert_short16(convert_int16(x))
#define TO16_i32(FROM, x) convert_int16(x)
#define TO16_i64(FROM, x) convert_long16(x)
#define TO16_f16(FROM, x) convert_float16(x)
#define TO16_bf16(FROM, x) convert_float16(x)
#define TO16_f32(FROM, x) convert_float16(x)
#define TO16_f64(FROM, x) convert_double16(x)
#define CONVERT16(FROM, TO, x) CAT(TO16_, TO)(FROM, x)
