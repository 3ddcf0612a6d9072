// How an operation is written. ops/<family>.cpp registers one function per UniOp with OCL_KERNEL; at a call it gets an
// Op: operands, attributes, the stream, and the means to build a program from kernels/<family>.cl and to queue its
// kernels. Programs are looked up by a small integer key per registration, so a repeated call meets no string and
// builds nothing.
//
//   fl_status relu(Op& op) {
//     const Program& program = op.program(0, [&](Source& source) {
//       source.define("T", op.in);
//       source.file("relu.cl");
//       source.kernel("relu");
//     });
//     const int64_t n = numel(op.output(0));
//     op.launch(program, 0, {n}, {64}, op.output(0), op.input(0), n);
//     return FL_STATUS_OK;
//   }
//   OCL_KERNEL("relu", kFloatTypes, relu);
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "device.h"
#include "error.h"

namespace ocl {

constexpr int kMaxDims = 12;  // of operands; above it the host flattens or takes another tier

constexpr uint32_t kHalfTypes = bit(Type::Float16) | bit(Type::BFloat16);
constexpr uint32_t kFloatTypes = kHalfTypes | bit(Type::Float32) | bit(Type::Float64);
constexpr uint32_t kIntTypes =
    bit(Type::UInt8) | bit(Type::Int8) | bit(Type::Int16) | bit(Type::Int32) | bit(Type::Int64);
constexpr uint32_t kRealTypes = kFloatTypes | kIntTypes;
constexpr uint32_t kAllTypes = kRealTypes | bit(Type::Bool);

inline int64_t numel(const fl_tensor& t) {
  int64_t n = 1;
  for (int d = 0; d < t.ndim; ++d) n *= t.sizes[d];
  return n;
}
inline Type type(const fl_tensor& t) { return type_of(t.dtype); }
inline bool absent(const fl_tensor& t) { return (t.flags & FL_TENSOR_ABSENT) != 0; }
inline bool immediate(const fl_tensor& t) { return (t.flags & FL_TENSOR_IMMEDIATE) != 0; }
bool dense(const fl_tensor& t);  // row-major without gaps; sizes of 1 do not count

// The text of a program under construction: definitions first, then files in order. kernels/types.cl is always first.
class Source {
 public:
  explicit Source(const Device& device) : device_(device) {}
  Source& define(const char* name, Type type);  // the type's token, for LOAD(T, …), MEM(T), ACC(T)
  Source& define(const char* name, int64_t value);
  Source& define(const char* name, const std::string& text);
  Source& file(const char* name);               // kernels/<name>; throws Failure if it cannot be read
  Source& text(const std::string& code);
  Source& kernel(const char* name);             // the next index of Program::kernel()
  Source& option(const char* flag);             // a build option of the compiler

 private:
  friend class ProgramStore;
  const Device& device_;
  std::string definitions_, body_, options_;
  std::vector<std::string> kernels_;
};

// A built program. A cl_kernel's arguments are its state, so `mutex` is held from the first argument to the launch.
class Program {
 public:
  struct Kernel {
    cl_kernel handle = nullptr;
    mutable std::mutex mutex;
    size_t max_group = 1;  // largest work-group that the compiler allows
  };
  const Kernel& kernel(int index) const { return *kernels_[static_cast<size_t>(index)]; }

 private:
  friend class ProgramStore;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

// The built programs of a device, in memory by their text and on disk (program_cache.cpp).
class ProgramStore {
 public:
  explicit ProgramStore(Device& device) : device_(device) {}
  const Program& get(const Source& source);  // throws Failure with the compiler's log

 private:
  cl_program build(const std::string& text, const std::string& options, const std::string& what);
  Device& device_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

class Op;
using OpFunction = fl_status (*)(Op& op);

struct Registration {
  const char* uniop;
  uint32_t in_types;   // bits of the computing types served
  uint32_t out_types;  // bits of the first output's types; 0 = the computing type
  OpFunction run;
  uint32_t flags;      // FL_KERNEL_*: what it cannot take. FL_KERNEL_NO_IMMEDIATE unless it handles immediates
};
struct Registrar {
  explicit Registrar(const Registration& registration);
};
#define OCL_CONCAT_(a, b) a##b
#define OCL_CONCAT(a, b) OCL_CONCAT_(a, b)
// OCL_KERNEL(uniop, types, function [, out_types [, flags]])
#define OCL_KERNEL(uniop, types, ...) \
  const ::ocl::Registrar OCL_CONCAT(registrar_, __COUNTER__)(::ocl::registration(uniop, types, __VA_ARGS__))
constexpr Registration registration(const char* uniop, uint32_t types, OpFunction run, uint32_t out_types = 0,
                                    uint32_t flags = FL_KERNEL_NO_IMMEDIATE) {
  return {uniop, types, out_types, run, flags};
}

// fl_kernel.data: one registration on one device for one pair of types, with the programs that it has needed so far.
struct Instance {
  const Registration* registration = nullptr;
  Device* device = nullptr;
  Type in = Type::None, out = Type::None;

  struct Entry {
    uint64_t key;
    const Program* program;
    const Entry* next;
  };
  std::atomic<const Entry*> entries{nullptr};  // grows only; a short list
};

// One axis of a launch: global sizes are padded up to a multiple of the local ones, so kernels must check bounds.
using Grid = std::array<size_t, 3>;
struct Extent {
  Grid size{1, 1, 1};
  int dims = 1;
  Extent(std::initializer_list<int64_t> list) {
    dims = static_cast<int>(list.size());
    size_t i = 0;
    for (int64_t n : list) size[i++] = static_cast<size_t>(n);
  }
};

// Local memory of this size as a kernel argument.
struct Local {
  size_t bytes;
};
// A value passed as it lies in memory (a struct of sizes and strides, a scalar in the computing type).
struct Bytes {
  const void* data;
  size_t size;
};
// Bytes of an attribute or immediate in the computing type `acc` of `type` (float for 16-bit floats).
struct Value {
  explicit Value(Type type, const fl_scalar& scalar);
  Value(Type type, double value);
  alignas(8) unsigned char bytes[8];
  size_t size;
};

class Op {
 public:
  Op(const fl_op_call& c, Instance& instance)
      : call(c), device(*instance.device), stream(*reinterpret_cast<Stream*>(c.stream)), in(instance.in),
        out(instance.out), instance_(instance) {}

  const fl_op_call& call;
  Device& device;
  Stream& stream;  // locked by the caller
  const Type in, out;  // the types of the look-up

  const fl_tensor& input(int i) const { return call.inputs[i]; }
  const fl_tensor& output(int i) const { return call.outputs[i]; }
  bool has_input(int i) const { return i < call.num_inputs && !absent(call.inputs[i]); }
  bool has_output(int i) const { return i < call.num_outputs && !absent(call.outputs[i]); }
  int64_t attr_int(int i) const;   // a float attribute is truncated
  double attr_float(int i) const;
  bool attr_given(int i) const { return i < call.num_attrs && call.attrs[i].tag != FL_SCALAR_NONE; }

  // The program under `key`, made by write(Source&) on its first use. `key` must tell apart all that `write` depends on
  // beyond the registration, the device and the types of the look-up.
  template <class Write>
  const Program& program(uint64_t key, const Write& write) {
    for (const Instance::Entry* e = instance_.entries.load(std::memory_order_acquire); e != nullptr; e = e->next)
      if (e->key == key) return *e->program;
    Source source(device);
    write(source);
    return add(key, source);
  }

  // Queues kernel `index` of the program. Each argument is a fl_tensor or Place with its element size (two kernel
  // parameters: base and offset in elements, see IN/OUT in types.cl), an int32_t, int64_t, float, double, Local, Bytes or Value.
  template <class... Args>
  void launch(const Program& program, int index, Extent global, Extent local, const Args&... args) {
    const Program::Kernel& kernel = program.kernel(index);
    std::lock_guard<std::mutex> lock(kernel.mutex);
    int at = 0;
    (set(kernel.handle, at, args), ...);
    enqueue(kernel, global, local);
  }

 private:
  const Program& add(uint64_t key, const Source& source);
  void set(cl_kernel kernel, int& at, const fl_tensor& t);
  struct Sized {
    Place place;
    int item;
  };
  void set(cl_kernel kernel, int& at, const Sized& place);
  void set(cl_kernel kernel, int& at, int32_t value);
  void set(cl_kernel kernel, int& at, int64_t value);
  void set(cl_kernel kernel, int& at, float value);
  void set(cl_kernel kernel, int& at, double value);
  void set(cl_kernel kernel, int& at, const Local& local);
  void set(cl_kernel kernel, int& at, const Bytes& bytes);
  void set(cl_kernel kernel, int& at, const Value& value);
  void enqueue(const Program::Kernel& kernel, const Extent& global, const Extent& local);

  Instance& instance_;

 public:
  // A Place as an argument: `item` is the size in bytes of the parameter's elements.
  static Sized at(const Place& place, int item) { return {place, item}; }
};

}  // namespace ocl
