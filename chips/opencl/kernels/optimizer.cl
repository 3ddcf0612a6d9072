// The steps of Adam, AdamW and SGD over GROUP tensors at a time: all together are one range of pieces, a work-item
// each. T: parameters and gradients, S: states. ADAM, or SGD with MOMENTUM or without.

#define GROUP 8
#define FOR_GROUP(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

typedef struct {
  long pieces[GROUP + 1];  // the first piece of each tensor
  long sizes[GROUP];
  long chunk;              // elements in a piece
} Group;

#ifdef ADAM

typedef struct {
  ACC(T) beta2, grad_share, square_share, eps, decay, keep, step_size, correction, sign;
} Step;

#define TENSORS(k) IN(T, grad##k), OUT(T, param##k), OUT(S, mean##k), OUT(S, square##k),
#define CHOOSE(k)                         \
  if (which == k) {                       \
    grad = grad##k##_base + grad##k##_offset;       \
    param = param##k##_base + param##k##_offset;    \
    mean = mean##k##_base + mean##k##_offset;       \
    square = square##k##_base + square##k##_offset; \
  }
#define POINTERS                    \
  const __global MEM(T)* grad = 0;  \
  __global MEM(T)* param = 0;       \
  __global MEM(S) *mean = 0, *square = 0;

#define STEP_AT(V, LOAD_, STORE_)                                                    \
  {                                                                                  \
    const V p = LOAD_(T, param, i) * s.keep;                                         \
    V g = LOAD_(T, grad, i) * s.sign;                                                \
    if (s.decay != 0) g += p * s.decay; /* 0 * inf is no decay */                    \
    V m = LOAD_(S, mean, i), q = LOAD_(S, square, i);                                \
    m += s.grad_share * (g - m);                                                     \
    q = s.beta2 * q + s.square_share * g * g;                                        \
    STORE_(S, mean, i, m);                                                           \
    STORE_(S, square, i, q);                                                         \
    STORE_(T, param, i, p - s.step_size * m / (sqrt(q) / s.correction + s.eps));     \
  }

#else

typedef struct {
  ACC(T) lr, momentum, fresh, decay, sign;
  int nesterov, first;
} Step;

#ifdef MOMENTUM
#define TENSORS(k) IN(T, grad##k), OUT(T, param##k), OUT(T, buffer##k),
#define CHOOSE_BUFFER(k) buffer = buffer##k##_base + buffer##k##_offset;
#define POINTERS                   \
  const __global MEM(T)* grad = 0; \
  __global MEM(T) *param = 0, *buffer = 0;
// The first time the buffers hold nothing yet, perhaps NaN: they are not read.
#define DIRECTION(V, LOAD_, STORE_)                                      \
  V b = g;                                                               \
  if (!s.first) b = s.momentum * LOAD_(T, buffer, i) + s.fresh * g;      \
  STORE_(T, buffer, i, b);                                               \
  g = s.nesterov ? g + s.momentum * b : b;
#else
#define TENSORS(k) IN(T, grad##k), OUT(T, param##k),
#define CHOOSE_BUFFER(k)
#define POINTERS                   \
  const __global MEM(T)* grad = 0; \
  __global MEM(T)* param = 0;
#define DIRECTION(V, LOAD_, STORE_)
#endif

#define CHOOSE(k)                                \
  if (which == k) {                              \
    grad = grad##k##_base + grad##k##_offset;    \
    param = param##k##_base + param##k##_offset; \
    CHOOSE_BUFFER(k)                             \
  }

#define STEP_AT(V, LOAD_, STORE_)                                           \
  {                                                                         \
    const V p = LOAD_(T, param, i);                                         \
    V g = LOAD_(T, grad, i) * s.sign;                                       \
    if (s.decay != 0) g += p * s.decay; /* an infinite parameter stays out */ \
    DIRECTION(V, LOAD_, STORE_)                                             \
    STORE_(T, param, i, p - s.lr * g);                                      \
  }

#endif

__kernel void optimizer_step(FOR_GROUP(TENSORS) Group group, Step s) {
  const long piece = get_global_id(0);
  if (piece >= group.pieces[GROUP]) return;
  int which = 0;
  while (piece >= group.pieces[which + 1]) ++which;
  POINTERS
  FOR_GROUP(CHOOSE)
  long i = (piece - group.pieces[which]) * group.chunk;
  const long end = min(i + group.chunk, group.sizes[which]);
#ifdef CPU
  for (; i + 16 <= end; i += 16) STEP_AT(ACC16(T), LOAD16, STORE16)
#endif
  for (; i < end; ++i) STEP_AT(ACC(T), LOAD, STORE)
}
