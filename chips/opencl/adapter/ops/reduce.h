// What reductions, softmax and norms share: dims of several operands merged into few (Axes), the modes that
// kernels/reduce_row.cl is compiled in, and the driver of kernels/reduce.cl.
#pragma once
#include "kernel.h"

namespace ocl {

// Dims with a stride for each of up to four operands, the last one fastest: Axes of kernels/reduce_row.cl.
struct Axes {
  static constexpr int kOperands = 4;
  int operands;
  int dims = 0;
  int64_t size[kMaxDims] = {};
  int64_t stride[kOperands][kMaxDims] = {};

  explicit Axes(int n) : operands(n) {}
  void add(int64_t length, std::initializer_list<int64_t> strides);  // dims of size 1 are dropped
  void order();  // by the first operand's strides, largest first, then merges neighbours that all operands allow
  void merge();
  int64_t count() const;
};

// Axes as a kernel argument, for DIMS dims.
struct PackedAxes {
  PackedAxes(const Axes& axes, int max_dims);
  Bytes bytes() const { return {words, static_cast<size_t>(used) * 8}; }
  int64_t words[1 + kMaxDims * (1 + Axes::kOperands)];
  int used;
};
constexpr int kFewDims = 4;  // programs know this many, or kMaxDims
inline int dims_for(int dims) { return dims <= kFewDims ? kFewDims : kMaxDims; }

enum class RowMode : uint8_t { Dense, Strided, Columns, Group, Item };  // see kernels/reduce_row.cl

constexpr int kGroupSize = 128;  // of RowMode::Group, and the most of Item
void define_mode(Source& source, RowMode mode);
Type computing_type(Type type);  // of elements in kernels: float for 16-bit floats, uint8 for bool

// Launch sizes for `rows` rows, each of about `cost` elements.
struct RowGrid {
  Extent global, local;
};
RowGrid row_grid(const Device& device, RowMode mode, int64_t rows, int64_t cost);

// A tensor or scratch memory as an operand.
struct Operand {
  Place place;
  Type type;
  Operand(const fl_tensor& t) : place(Place::of(t.memory)), type(ocl::type(t)) {}
  Operand(const Place& p, Type of) : place(p), type(of) {}
};

// A reduction of one or two inputs to one or two outputs by a fold of kernels/reduce_*.cl.
struct Reduction {
  const char* file;
  uint64_t key;                              // tells apart what `define` writes, 16 bits
  void (*define)(Source& source, Type acc);  // the fold's own definitions; may be null
  Type acc;                                  // A, the computing type
  Type part0, part1;                         // types of a state's two values in scratch memory
  double p0 = 0, p1 = 0;
  bool ordered = false;                      // positions matter: parts stay below 2^31 elements
  bool split = true;                         // may use scratch memory
};

// kept: operands inputs, then two outputs; reduced: inputs. Neither needs to be ordered before.
class Reducer {
 public:
  Reducer(Op& op, const Reduction& what, int inputs, Axes kept, Axes reduced);
  int64_t scratch_bytes() const;
  // centre: one value of type acc per output, dense, for reduce_products.cl; else any place.
  void run(const Operand* in, const Operand& out, const Operand& out2, const Place& centre, const Place& scratch);

 private:
  void choose();
  enum class Step : uint8_t { All, Parts, Merge };  // the kernels of kernels/reduce.cl
  const Program& program(Step step, RowMode mode, Type in, Type out, Type out2);

  Op& op_;
  const Reduction& what_;
  int inputs_;
  Axes kept_, reduced_;
  int max_dims_;
  RowMode mode_;
  int64_t outputs_, total_, rows_, parts_ = 1;
};

// Folds that norms use too. The second outputs of variance_reduction are means.
Reduction sum_reduction(Type acc);
Reduction variance_reduction(Type acc, bool fp64);
Reduction products_reduction(Type acc);  // of two inputs and a centre: sums of x and of x * (y - centre)

}  // namespace ocl
