// The steps of Adam, AdamW and SGD over lists of tensors, eight to a launch (kernels/optimizer.cl).
#include <cmath>
#include <tuple>
#include <utility>

#include "index_walk.h"

namespace ocl {
namespace {

constexpr int kGroup = 8;

// struct Group of optimizer.cl.
struct Group {
  int64_t pieces[kGroup + 1];
  int64_t sizes[kGroup];
  int64_t chunk;
};

// The tensors from `first` on.
Group group_of(const Op& op, int first, int count) {
  Group group{};
  int64_t total = 0;
  for (int k = 0; k < kGroup; ++k) {
    group.sizes[k] = k < count ? numel(op.output(first + k)) : 0;
    total += group.sizes[k];
  }
  group.chunk = Pieces(op.device, total, 4096).chunk;
  if (op.device.cpu) group.chunk = (group.chunk + 15) / 16 * 16;
  for (int k = 0; k < kGroup; ++k)
    group.pieces[k + 1] = group.pieces[k] + (group.sizes[k] + group.chunk - 1) / group.chunk;
  return group;
}

// Calls body with the tensors list(0) … list(kGroup - 1), in one flat list of arguments per tensor.
template <class List, class Body, size_t... K>
void expand(const List& list, const Body& body, std::index_sequence<K...>) {
  std::apply(body, std::tuple_cat(list(static_cast<int>(K))...));
}

// `tensors(k)`: a tuple of the k-th tensor of each list.
template <class List>
void launch_groups(Op& op, const Program& program, int count, const List& tensors, const Bytes& step) {
  for (int first = 0; first < count; first += kGroup) {
    const int here = std::min(kGroup, count - first);
    const Group group = group_of(op, first, here);
    // Places behind the last tensor are filled with it, and have no pieces.
    const auto list = [&](int k) { return tensors(first + std::min(k, here - 1)); };
    expand(list, [&](const auto&... t) {
      op.launch(program, 0, {group.pieces[kGroup]}, {op.device.cpu ? 1 : 64}, t..., Bytes{&group, sizeof(group)}, step);
    }, std::make_index_sequence<kGroup>());
  }
}

// A struct of numbers in the computing type.
class Numbers {
 public:
  explicit Numbers(Type type) : type_(type) {}
  void add(double value) {
    const Value v(type_, value);
    std::memcpy(bytes_ + size_, v.bytes, v.size);
    size_ += v.size;
  }
  void add_int(int32_t value) {
    std::memcpy(bytes_ + size_, &value, sizeof(value));
    size_ += sizeof(value);
  }
  Bytes bytes() const { return {bytes_, size_}; }

 private:
  Type type_;
  alignas(8) unsigned char bytes_[96] = {};
  size_t size_ = 0;
};

// Gradients and parameters of one type, moments of that type or float32.
bool adam_fits(const Op& op) {
  const int count = op.call.num_inputs;
  if (count == 0 || op.call.num_outputs != 3 * count) return false;
  const Type state = type(op.output(count));
  if (state != op.in && !((bit(op.in) & kHalfTypes) != 0 && state == Type::Float32)) return false;
  for (int k = 0; k < count; ++k) {
    if (type(op.input(k)) != op.in || type(op.output(k)) != op.in) return false;
    if (type(op.output(count + k)) != state || type(op.output(2 * count + k)) != state) return false;
  }
  return true;
}

fl_status adam(Op& op) {
  if (!adam_fits(op)) return FL_STATUS_UNIMPLEMENTED;
  const int count = op.call.num_inputs;
  const Type state = type(op.output(count));
  const auto& program = op.program(state == op.in, [&](Source& source) {
    source.define("ADAM", int64_t{1});
    source.define("T", op.in);
    source.define("S", state);
    source.file("optimizer.cl");
    source.kernel("optimizer_step");
  });
  const double lr = op.attr_float(0), beta1 = op.attr_float(1), beta2 = op.attr_float(2);
  const double weight_decay = op.attr_float(4), step = op.attr_float(6);
  const bool decoupled = op.attr_int(5) != 0;
  Numbers numbers(op.in);
  numbers.add(beta2);
  numbers.add(1.0 - beta1);
  numbers.add(1.0 - beta2);
  numbers.add(op.attr_float(3));
  numbers.add(decoupled ? 0.0 : weight_decay);
  numbers.add(decoupled ? 1.0 - lr * weight_decay : 1.0);
  numbers.add(lr / (1.0 - std::pow(beta1, step)));
  numbers.add(std::sqrt(1.0 - std::pow(beta2, step)));
  numbers.add(op.attr_int(7) != 0 ? -1.0 : 1.0);
  const auto tensors = [&](int k) {
    return std::tie(op.input(k), op.output(k), op.output(count + k), op.output(2 * count + k));
  };
  launch_groups(op, program, count, tensors, numbers.bytes());
  return FL_STATUS_OK;
}

fl_status sgd(Op& op) {
  const int count = op.call.num_inputs;
  if (count == 0 || op.call.num_outputs < count) return FL_STATUS_UNIMPLEMENTED;
  const bool momentum = op.call.num_outputs >= 2 * count && op.has_output(count) && op.attr_float(1) != 0.0;
  for (int k = 0; k < count; ++k) {
    if (type(op.input(k)) != op.in || type(op.output(k)) != op.in) return FL_STATUS_UNIMPLEMENTED;
    if (momentum && type(op.output(count + k)) != op.in) return FL_STATUS_UNIMPLEMENTED;
  }
  const auto& program = op.program(momentum, [&](Source& source) {
    source.define("SGD", int64_t{1});
    if (momentum) source.define("MOMENTUM", int64_t{1});
    source.define("T", op.in);
    source.file("optimizer.cl");
    source.kernel("optimizer_step");
  });
  Numbers numbers(op.in);
  numbers.add(op.attr_float(0));
  numbers.add(op.attr_float(1));
  numbers.add(1.0 - op.attr_float(2));
  numbers.add(op.attr_float(3));
  numbers.add(op.attr_int(5) != 0 ? -1.0 : 1.0);
  numbers.add_int(op.attr_int(4) != 0);
  numbers.add_int(op.attr_int(6) != 0);
  if (momentum) {
    const auto tensors = [&](int k) { return std::tie(op.input(k), op.output(k), op.output(count + k)); };
    launch_groups(op, program, count, tensors, numbers.bytes());
  } else {
    const auto tensors = [&](int k) { return std::tie(op.input(k), op.output(k)); };
    launch_groups(op, program, count, tensors, numbers.bytes());
  }
  return FL_STATUS_OK;
}

OCL_KERNEL("adam", kFloatTypes, adam);
OCL_KERNEL("sgd", kFloatTypes, sgd);

}  // namespace
}  // namespace ocl
