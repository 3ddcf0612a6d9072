// The collectives of "flagos", each as: copies of the device tensors on the host, the same collective of the inner
// backend, copies back when it is done (staged_work.h). Data that only moves travels as bytes, so every type does.
#include "bridge/process_group.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>

#include "bridge/reduction.h"
#include "core/device.h"
#include "core/stream.h"

namespace fl::bridge {

namespace {

using c10d::OpType;
using Tensors = StagedBackend::Tensors;
using TensorLists = StagedBackend::TensorLists;
using WorkPtr = StagedBackend::WorkPtr;

bool on_host(const at::Tensor& t) { return !t.is_privateuseone(); }
bool on_host(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return on_host(t); });
}
bool on_host(const TensorLists& lists) {
  return std::all_of(lists.begin(), lists.end(), [](const Tensors& tensors) { return on_host(tensors); });
}

// The memory of a contiguous host tensor as bytes, and back.
at::Tensor bytes_of(const at::Tensor& host) { return host.view({host.numel()}).view(at::kByte); }
at::Tensor from_bytes(const at::Tensor& bytes, const at::Tensor& like) {
  return bytes.view(like.scalar_type()).view(like.sizes());
}
at::Tensor blank_bytes(int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte)); }
int64_t num_bytes(const at::Tensor& t) { return t.numel() * static_cast<int64_t>(t.itemsize()); }
at::Tensor upload_of(const at::Tensor& t) { return bytes_of(download(t)); }

template <typename T>
T& only(std::vector<T>& list, const char* title) {
  TORCH_CHECK_VALUE(list.size() == 1, title, " takes one tensor or list per rank, got ", list.size());
  return list[0];
}

void check_list(const Tensors& list, int size, const char* title) {
  TORCH_CHECK_VALUE(static_cast<int>(list.size()) == size, title, " needs one tensor per rank: the group has ",
                    size, " ranks, the list ", list.size(), " tensors");
}

void check_type(const at::Tensor& a, const at::Tensor& b, const char* title) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), title, " needs tensors of one type, got ", a.scalar_type(),
                   " and ", b.scalar_type());
}

void check_times(const at::Tensor& large, const at::Tensor& small, int size, const char* title) {
  check_type(large, small, title);
  TORCH_CHECK_VALUE(large.numel() == small.numel() * size, title, " needs tensors of n and ", size,
                    " * n elements, got ", small.numel(), " and ", large.numel());
}

c10d::AllreduceOptions host_options(const Reduction& reduction, std::chrono::milliseconds timeout) {
  c10d::AllreduceOptions options;
  options.reduceOp = reduction.op;
  options.timeout = timeout;
  return options;
}

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

StagedBackend::StagedBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                             std::chrono::milliseconds timeout, HostFactory make_host)
    : Backend(rank, size),
      make_host_(std::move(make_host)),
      host_(make_host_(store, rank, size, timeout)),
      options_(c10::make_intrusive<StagedOptions>(timeout)),
      health_(std::make_shared<std::atomic<c10d::ErrorType>>(c10d::ErrorType::SUCCESS)) {
  init();
}

void StagedBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  host_->setTimeout(timeout);
}

c10::intrusive_ptr<c10d::Backend> StagedBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  auto part = c10::make_intrusive<StagedBackend>(store, static_cast<int>(own - ranks.begin()),
                                                 static_cast<int>(ranks.size()),
                                                 options ? options->timeout : options_->timeout, make_host_);
  if (options) {
    part->options_->group_name = options->group_name;
    part->options_->global_ranks_in_group = options->global_ranks_in_group;
  }
  return part;
}

c10::intrusive_ptr<StagedWork> StagedBackend::work(OpType type, const char* title, const Tensors& inputs,
                                                   const Tensors& results) const {
  return c10::make_intrusive<StagedWork>(rank_, type, title, inputs, results, health_);
}

// ---- data that moves

WorkPtr StagedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (on_host(tensors)) return host_->broadcast(tensors, options);
  at::Tensor& tensor = only(tensors, "broadcast");
  auto w = work(OpType::BROADCAST, "flagos:broadcast", tensors, tensors);
  const bool root = options.rootRank == rank_;
  Tensors wire{root ? upload_of(tensor) : blank_bytes(num_bytes(tensor))};
  if (!root) w->land(tensor, from_bytes(wire[0], tensor));
  w->follow({host_->broadcast(wire, options)});
  return w;
}

void StagedBackend::allgather_part(StagedWork& w, std::vector<WorkPtr>& parts, const Tensors& outputs,
                                   const at::Tensor& input, const c10d::AllgatherOptions& options) {
  check_list(outputs, size_, "all_gather");
  int64_t total = 0;
  for (const auto& output : outputs) {
    check_type(output, input, "all_gather");
    total += num_bytes(output);
  }
  TORCH_CHECK_VALUE(outputs[rank_].numel() == input.numel(), "all_gather: the output for this rank has ",
                    outputs[rank_].numel(), " elements, its input ", input.numel());
  at::Tensor all = blank_bytes(total), own = upload_of(input);
  const auto as_input = [&](const at::Tensor& t) { return t.numel() == input.numel(); };
  const bool even = std::all_of(outputs.begin(), outputs.end(), as_input);
  int64_t offset = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t count = num_bytes(outputs[rank]);
    at::Tensor piece = all.narrow(0, offset, count);
    offset += count;
    w.land(outputs[rank], from_bytes(piece, outputs[rank]));
    if (even || count == 0) continue;
    c10d::BroadcastOptions from;
    from.rootRank = rank;
    from.timeout = options.timeout;
    if (rank == rank_) piece.copy_(own);
    Tensors wire{piece};
    parts.push_back(host_->broadcast(wire, from));
  }
  if (even && total > 0) parts.push_back(host_->_allgather_base(all, own, options));
}

WorkPtr StagedBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (on_host(outputs) && on_host(inputs)) return host_->allgather(outputs, inputs, options);
  auto w = work(OpType::ALLGATHER, "flagos:all_gather", inputs, only(outputs, "all_gather"));
  std::vector<WorkPtr> parts;
  allgather_part(*w, parts, outputs[0], only(inputs, "all_gather"), options);
  w->follow(std::move(parts));
  return w;
}

WorkPtr StagedBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  if (on_host(output) && on_host(input)) return host_->_allgather_base(output, input, options);
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr StagedBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  if (on_host(outputs) && on_host(inputs)) return host_->allgather_coalesced(outputs, inputs, options);
  auto w = work(OpType::ALLGATHER_COALESCED, "flagos:all_gather_coalesced", inputs, flat(outputs));
  check_list(inputs, static_cast<int>(outputs.size()), "all_gather_coalesced");
  std::vector<WorkPtr> parts;
  for (size_t i = 0; i < inputs.size(); ++i) allgather_part(*w, parts, outputs[i], inputs[i], options);
  w->follow(std::move(parts));
  return w;
}

WorkPtr StagedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  if (on_host(outputs) && on_host(inputs)) return host_->allgather_into_tensor_coalesced(outputs, inputs, options);
  TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "all_gather_single_coalesced needs as many inputs as outputs");
  auto w = work(OpType::_ALLGATHER_BASE, "flagos:_all_gather_base", inputs, outputs);
  std::vector<WorkPtr> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_times(outputs[i], inputs[i], size_, "all_gather_single");
    at::Tensor all = blank_bytes(num_bytes(outputs[i])), own = upload_of(inputs[i]);
    w->land(outputs[i], from_bytes(all, outputs[i]));
    if (all.numel() > 0) parts.push_back(host_->_allgather_base(all, own, options));
  }
  w->follow(std::move(parts));
  return w;
}

WorkPtr StagedBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  if (on_host(outputs) && on_host(inputs)) return host_->gather(outputs, inputs, options);
  const at::Tensor& input = only(inputs, "gather");
  const bool root = options.rootRank == rank_;
  auto w = work(OpType::GATHER, "flagos:gather", inputs, root ? only(outputs, "gather") : Tensors{});
  TensorLists wire_outputs;
  if (root) {
    check_list(outputs[0], size_, "gather");
    wire_outputs.emplace_back();
    for (const auto& output : outputs[0]) {
      check_times(output, input, 1, "gather");
      wire_outputs[0].push_back(blank_bytes(num_bytes(output)));
      w->land(output, from_bytes(wire_outputs[0].back(), output));
    }
  }
  Tensors wire{upload_of(input)};
  w->follow({host_->gather(wire_outputs, wire, options)});
  return w;
}

WorkPtr StagedBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  if (on_host(outputs) && on_host(inputs)) return host_->scatter(outputs, inputs, options);
  const at::Tensor& output = only(outputs, "scatter");
  auto w = work(OpType::SCATTER, "flagos:scatter", flat(inputs), outputs);
  TensorLists wire_inputs;
  if (options.rootRank == rank_) {
    check_list(only(inputs, "scatter"), size_, "scatter");
    wire_inputs.emplace_back();
    for (const auto& input : inputs[0]) {
      check_times(output, input, 1, "scatter");
      wire_inputs[0].push_back(upload_of(input));
    }
  }
  Tensors wire{blank_bytes(num_bytes(output))};
  w->land(output, from_bytes(wire[0], output));
  w->follow({host_->scatter(wire, wire_inputs, options)});
  return w;
}

WorkPtr StagedBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                                     std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& options) {
  if (on_host(output) && on_host(input)) return host_->alltoall_base(output, input, output_rows, input_rows, options);
  check_type(output, input, "all_to_all_single");
  c10d::checkSplitSizes(output_rows, output, size_);
  c10d::checkSplitSizes(input_rows, input, size_);
  const auto in_bytes = [](const std::vector<int64_t>& rows, const at::Tensor& t) {
    std::vector<int64_t> counts = rows;
    for (auto& count : counts) count *= num_bytes(t) / std::max<int64_t>(t.size(0), 1);
    return counts;
  };
  auto w = work(OpType::ALLTOALL_BASE, "flagos:all_to_all", {input}, {output});
  auto output_bytes = in_bytes(output_rows, output), input_bytes = in_bytes(input_rows, input);
  at::Tensor received = blank_bytes(num_bytes(output)), sent = upload_of(input);
  w->land(output, from_bytes(received, output));
  w->follow({host_->alltoall_base(received, sent, output_bytes, input_bytes, options)});
  return w;
}

WorkPtr StagedBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  if (on_host(outputs) && on_host(inputs)) return host_->alltoall(outputs, inputs, options);
  check_list(outputs, size_, "all_to_all");
  check_list(inputs, size_, "all_to_all");
  auto w = work(OpType::ALLTOALL, "flagos:all_to_all", inputs, outputs);
  std::vector<int64_t> output_bytes, input_bytes;
  Tensors pieces;
  int64_t total = 0;
  for (int rank = 0; rank < size_; ++rank) {
    check_type(outputs[rank], inputs[rank], "all_to_all");
    pieces.push_back(upload_of(inputs[rank]));
    input_bytes.push_back(pieces.back().numel());
    output_bytes.push_back(num_bytes(outputs[rank]));
    total += output_bytes.back();
  }
  at::Tensor sent = at::cat(pieces), received = blank_bytes(total);
  int64_t offset = 0;
  for (int rank = 0; rank < size_; ++rank) {
    w->land(outputs[rank], from_bytes(received.narrow(0, offset, output_bytes[rank]), outputs[rank]));
    offset += output_bytes[rank];
  }
  w->follow({host_->alltoall_base(received, sent, output_bytes, input_bytes, options)});
  return w;
}

// ---- reductions

WorkPtr StagedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  at::Tensor& tensor = only(tensors, "all_reduce");
  if (on_host(tensor) && tensor.layout() != at::kStrided) return host_->allreduce(tensors, options);
  const Reduction reduction = plan_reduction(options.reduceOp, tensor.scalar_type(), "all_reduce");
  if (on_host(tensor) && reduction.plain(tensor.scalar_type())) return host_->allreduce(tensors, options);
  c10d::AllreduceCoalescedOptions same;
  static_cast<c10d::AllreduceOptions&>(same) = options;
  return allreduce_staged(OpType::ALLREDUCE, "flagos:all_reduce", tensors, same);
}

WorkPtr StagedBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const auto plain = [&](const at::Tensor& t) {
    const auto type = t.scalar_type();
    return on_host(t) && plan_reduction(options.reduceOp, type, "all_reduce_coalesced").plain(type);
  };
  if (std::all_of(tensors.begin(), tensors.end(), plain)) return host_->allreduce_coalesced(tensors, options);
  return allreduce_staged(OpType::ALLREDUCE_COALESCED, "flagos:all_reduce_coalesced", tensors, options);
}

WorkPtr StagedBackend::allreduce_staged(OpType type, const char* title, Tensors& tensors,
                                        const c10d::AllreduceOptions& options) {
  auto w = work(type, title, tensors, tensors);
  std::vector<std::pair<Reduction, at::Tensor>> wires;
  for (const auto& tensor : tensors) {
    const Reduction reduction = plan_reduction(options.reduceOp, tensor.scalar_type(), title);
    wires.emplace_back(reduction, pack(reduction, tensor));
    w->land(tensor, unpack(wires.back().second, tensor));
  }
  w->before_landing([wires, size = size_] {
    for (const auto& [reduction, wire] : wires) finish_reduction(reduction, wire, size);
  });
  std::vector<WorkPtr> parts;
  for (const auto& [reduction, wire] : wires) {
    if (wire.numel() == 0) continue;
    Tensors one{wire};
    parts.push_back(host_->allreduce(one, host_options(reduction, options.timeout)));
  }
  w->follow(std::move(parts));
  return w;
}

WorkPtr StagedBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_NOT_IMPLEMENTED(on_host(tensors),
                              "all_reduce of sparse tensors on fl devices is not available; make them dense");
  return host_->allreduce_sparse(tensors, options);
}

WorkPtr StagedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  at::Tensor& tensor = only(tensors, "reduce");
  const Reduction reduction = plan_reduction(options.reduceOp, tensor.scalar_type(), "reduce");
  if (on_host(tensor) && reduction.plain(tensor.scalar_type())) return host_->reduce(tensors, options);
  auto w = work(OpType::REDUCE, "flagos:reduce", tensors, tensors);
  Tensors wire{pack(reduction, tensor)};
  if (options.rootRank == rank_) {  // elsewhere the tensor stays as it is
    w->land(tensor, unpack(wire[0], tensor));
    w->before_landing([reduction, wire = wire[0], size = size_] { finish_reduction(reduction, wire, size); });
  }
  c10d::ReduceOptions host_options = options;
  host_options.reduceOp = reduction.op;
  std::vector<WorkPtr> parts;
  if (wire[0].numel() > 0) parts.push_back(host_->reduce(wire, host_options));
  w->follow(std::move(parts));
  return w;
}

// An all-reduce of which each rank keeps its piece. gloo's own reduce-scatter is one too, takes no pieces of different
// sizes, and its work has no future.
WorkPtr StagedBackend::reduce_scatter_staged(OpType type, const char* title, Tensors& outputs,
                                             const TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  auto w = work(type, title, flat(inputs), outputs);
  std::vector<std::pair<Reduction, at::Tensor>> wires, own_pieces;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Reduction reduction = plan_reduction(options.reduceOp, outputs[i].scalar_type(), title);
    Tensors pieces;
    int64_t offset = 0, own_offset = 0, own_count = 0;
    for (size_t piece = 0; piece < inputs[i].size(); ++piece) {
      check_type(outputs[i], inputs[i][piece], title);
      at::Tensor packed = pack(reduction, inputs[i][piece]);
      pieces.push_back(packed.view({packed.numel()}));
      if (inputs[i].size() == 1) {  // one tensor for all ranks
        own_count = packed.numel() / size_;
        own_offset = own_count * rank_;
      } else if (static_cast<int>(piece) == rank_) {
        own_count = packed.numel();
        own_offset = offset;
      }
      offset += packed.numel();
    }
    wires.emplace_back(reduction, pieces.size() == 1 ? pieces[0] : at::cat(pieces));
    own_pieces.emplace_back(reduction, wires.back().second.narrow(0, own_offset, own_count));
    w->land(outputs[i], unpack(own_pieces.back().second, outputs[i]));
  }
  w->before_landing([own_pieces, size = size_] {
    for (const auto& [reduction, piece] : own_pieces) finish_reduction(reduction, piece, size);
  });
  std::vector<WorkPtr> parts;
  for (const auto& [reduction, wire] : wires) {
    if (wire.numel() == 0) continue;
    Tensors one{wire};
    parts.push_back(host_->allreduce(one, host_options(reduction, options.timeout)));
  }
  w->follow(std::move(parts));
  return w;
}

WorkPtr StagedBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  const Tensors& pieces = only(inputs, "reduce_scatter");
  check_list(pieces, size_, "reduce_scatter");
  check_times(output, pieces[rank_], 1, "reduce_scatter");
  return reduce_scatter_staged(OpType::REDUCE_SCATTER, "flagos:reduce_scatter", outputs, inputs, options);
}

WorkPtr StagedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  check_times(input, output, size_, "reduce_scatter_single");
  Tensors outputs{output};
  const TensorLists inputs{{input}};
  return reduce_scatter_staged(OpType::_REDUCE_SCATTER_BASE, "flagos:_reduce_scatter_base", outputs, inputs, options);
}

WorkPtr StagedBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(inputs.size() == outputs.size(), "reduce_scatter_single_coalesced needs as many inputs as outputs");
  TensorLists lists;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_times(inputs[i], outputs[i], size_, "reduce_scatter_single");
    lists.push_back({inputs[i]});
  }
  return reduce_scatter_staged(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "flagos:reduce_scatter_tensor_coalesced",
                               outputs, lists, options);
}

// ---- point to point, barriers

WorkPtr StagedBackend::send(Tensors& tensors, int rank, int tag) {
  if (on_host(tensors)) return host_->send(tensors, rank, tag);
  auto w = work(OpType::SEND, "flagos:send", tensors, tensors);
  Tensors wire{upload_of(only(tensors, "send"))};
  w->follow_point_to_point(host_->send(wire, rank, tag));
  return w;
}

WorkPtr StagedBackend::recv(Tensors& tensors, int rank, int tag) {
  if (on_host(tensors)) return host_->recv(tensors, rank, tag);
  const at::Tensor& tensor = only(tensors, "recv");
  auto w = work(OpType::RECV, "flagos:recv", {}, tensors);
  Tensors wire{blank_bytes(num_bytes(tensor))};
  w->land(tensor, from_bytes(wire[0], tensor));
  w->follow_point_to_point(host_->recv(wire, rank, tag));
  return w;
}

WorkPtr StagedBackend::recvAnysource(Tensors& tensors, int tag) {
  if (on_host(tensors)) return host_->recvAnysource(tensors, tag);
  const at::Tensor& tensor = only(tensors, "recv");
  auto w = work(OpType::RECVANYSOURCE, "flagos:recv_any_source", {}, tensors);
  Tensors wire{blank_bytes(num_bytes(tensor))};
  w->land(tensor, from_bytes(wire[0], tensor));
  w->follow_point_to_point(host_->recvAnysource(wire, tag));
  return w;
}

// A barrier also waits for what this rank has queued on the device it names, or on its current one.
WorkPtr StagedBackend::barrier(const c10d::BarrierOptions& options) {
  if (options.device && options.device->is_privateuseone() && options.device->has_index()) {
    current_stream(options.device->index()).synchronize();
  } else if (devices_opened()) {
    current_stream(current_device()).synchronize();
  }
  return host_->barrier(options);
}

void StagedBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  host_->monitoredBarrier(options, wait_all_ranks);
}

void complete_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  if (!group->hasBackendForDeviceType(c10::kPrivateUse1)) return;
  const auto backend = group->getBackend(c10::kPrivateUse1);
  if (backend->getBackendName() != "flagos") return;
  if (!group->hasBackendForDeviceType(c10::kCPU)) group->setBackend(c10::kCPU, c10d::ProcessGroup::CUSTOM, backend);
  try {
    group->getDefaultBackend();
  } catch (const c10::Error&) {  // there is no way to ask
    group->setDefaultBackend(c10d::ProcessGroup::CUSTOM);
  }
}

}  // namespace fl::bridge
