// Elementwise operations: the rows of kernels/elementwise_table.cl, and the walk over operands of any layout that their
// kernels (kernels/elementwise.cl) share with copies and the creation of tensors.
#pragma once
#include "kernel.h"

namespace ocl {

struct Elementwise {
  const char* name;
  const char* inputs;  // a letter for each: T the computing type, B bool
  int attributes;
  uint32_t types;      // computing types
  char result;         // 'T', or 'B': bool, made of a comparison
  const char* files;   // of kernels/, beside the common ones, with spaces between
  const char* expression;
  bool division;       // an integer 0 in the second input is an error
};

// Places in the table.
enum class Row : int {
#define OP(name, ...) name,
#define VARIANT(name, ...) name,
#define DIVISION(name, ...) name,
#include "../../kernels/elementwise_table.cl"
#undef OP
#undef VARIANT
#undef DIVISION
  count
};
const Elementwise& row(Row row);

// The attributes of a call in the computing type, as struct Attributes of kernels/elementwise.cl.
struct Attributes {
  explicit Attributes(Type type) : type_(type) {}
  Attributes(Type type, const Op& op, int count);  // as the call gives them
  void set(int i, const fl_scalar& value);
  void set(int i, double value);
  void round(int i);  // to what tensors of the type can hold
  Bytes bytes() const;

 private:
  void put(int i, const Value& value);
  const Type type_;
  alignas(8) unsigned char values_[32] = {};
};

// The operands of one launch; they need not be those of the call. Strides may be negative.
struct Operands {
  const fl_tensor* out;
  int arity = 0;
  const fl_tensor* in[3] = {};
  explicit Operands(const Op& op, int count) : out(&op.output(0)), arity(count) {
    for (int k = 0; k < count; ++k) in[k] = &op.input(k);
  }
  explicit Operands(const fl_tensor& output) : out(&output) {}
  Operands(const fl_tensor& output, const fl_tensor& input) : out(&output), arity(1), in{&input} {}
};

// Which kernel of elementwise.cl: `dense`; `short_rows` or `strided` over 4 dims; `strided` over all 12.
enum class Walk : int { Dense, Short, Few, Many };
Walk walk_of(const Device& device, const Operands& operands);
constexpr uint64_t key_of(uint64_t form, Walk walk) { return form * 4 + static_cast<uint64_t>(walk); }  // of a program

// The definitions and files of elementwise.cl for an operation of the table or one like it.
void elementwise_source(Source& source, Type computing, Type result, const Elementwise& what, Walk walk, bool cpu);

// Copies large transposed inputs into dense scratch memory and puts these copies in their place: one pass by tiles
// costs far less than a cache miss for each element. True if it did.
class Untangled {
 public:
  bool untangle(Op& op, Operands& operands);

 private:
  fl_tensor copies_[3];
  int64_t strides_[kMaxDims];
};

// Queues the kernel of a program that was made for `walk`. attributes: what struct Attributes holds, nullptr if
// there is none.
void launch_elementwise(Op& op, const Program& program, Walk walk, const Operands& operands, const Bytes* attributes,
                        bool check_divisor = false);

// Runs a row of the table. attributes: nullptr takes those of the call.
fl_status elementwise(Op& op, Row row, const Attributes* attributes = nullptr);

}  // namespace ocl
