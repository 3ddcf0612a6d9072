// What all kernels of the matrix product share: the type it is summed in and, on CPU devices, the transposition that
// packing stands on. The program defines
//   T             token of the operands' type
//   GEMM_T        float, double, uint or ulong: what products are summed in (integers wrap)
//   GEMM_LANES    numbers of GEMM_T in a vector register; a panel of b has two such vectors of columns
//   GEMM_ROWS     rows of a panel of a
//   GEMM_FLOAT    1 for the floating types: sixteen elements of T load as sixteen of GEMM_T
typedef GEMM_T gemm_t;
typedef CAT(GEMM_T, GEMM_LANES) gemm_vector_t;
typedef CAT(GEMM_T, 16) gemm_16_t;
#define GEMM_COLUMNS (2 * GEMM_LANES)
// Stores sixteen, aligned to the element, in any address space (vstore16 of PoCL 3 is four stores).
typedef gemm_16_t gemm_unaligned_t __attribute__((aligned(sizeof(gemm_t))));
#define GEMM_PUT16(SPACE, p, value) *(SPACE gemm_unaligned_t*)(p) = (value)

// Where a fetched panel of b goes: local memory, or packed in global memory.
#ifndef PANEL_SPACE
#define PANEL_SPACE __local
#endif

// What is applied to a finished sum before it is stored, scalar or vector.
#ifndef EPILOGUE
#define EPILOGUE(x) (x)
#endif

#if defined(CPU) && GEMM_FLOAT
// Four rounds of unzipping neighbours: t[c] becomes the lanes c of all t[r].
#define GEMM_UNZIP(to, from)                                                                                   \
  for (int i = 0; i < 8; ++i) {                                                                                \
    to[i] = (gemm_16_t)(from[2 * i].even, from[2 * i + 1].even);                                               \
    to[i + 8] = (gemm_16_t)(from[2 * i].odd, from[2 * i + 1].odd);                                             \
  }

// to[i * step + r] = from[r * stride + i] for 16 values of r and of i; rows from `rows` on repeat the last one.
// Stores run upwards, sixteen wide: a step below 16 leaves 16 - step numbers behind the last row.
#define GEMM_TRANSPOSE_16(SPACE, name)                                                                         \
  static inline void name(SPACE gemm_t* to, long step, const __global MEM(T)* from, long stride, long rows) {         \
    gemm_16_t t[16], u[16];                                                                                    \
    _Pragma("unroll") for (int r = 0; r < 16; ++r) t[r] = LOAD16(T, from, min((long)r, rows - 1) * stride);     \
    _Pragma("unroll") GEMM_UNZIP(u, t)                                                                         \
    _Pragma("unroll") GEMM_UNZIP(t, u)                                                                         \
    _Pragma("unroll") GEMM_UNZIP(u, t)                                                                         \
    _Pragma("unroll") GEMM_UNZIP(t, u)                                                                         \
    _Pragma("unroll") for (int i = 0; i < 16; ++i) GEMM_PUT16(SPACE, to + i * step, t[i]);                     \
  }
#endif
