// What the special functions are computed in: double where the device has it.
#ifdef HAS_FP64
typedef double wide;
#else
typedef float wide;
#endif
#define WIDE_PI ((wide)3.14159265358979323846)
#define ROOT_2 ((wide)1.41421356237309504880)
#define ROOT_PI ((wide)1.77245385090551602730)

// The sum of terms[k] * T_k(t), by Clenshaw's recurrence. terms[0] is halved already.
static inline wide chebyshev(__constant wide* terms, int count, wide t) {
  wide a = 0, b = 0;
  for (int k = count - 1; k > 0; --k) {
    const wide next = 2 * t * a - b + terms[k];
    b = a;
    a = next;
  }
  return t * a - b + terms[0];
}
