// The table that Torch-FL sees. Each entry turns what the runtime throws into a status.
#include "torch_fl/adapter.h"

#include <algorithm>

#include "error.h"
#include "memory.h"
#include "runtime.h"
#include "stream.h"

namespace ocl {

namespace {

Stream& stream_of(fl_stream stream) {
  if (stream == nullptr) fail(FL_STATUS_INVALID_ARGUMENT, "the stream is NULL");
  return *reinterpret_cast<Stream*>(stream);
}
Event& event_of(fl_event event) {
  if (event == nullptr) fail(FL_STATUS_INVALID_ARGUMENT, "the event is NULL");
  return *reinterpret_cast<Event*>(event);
}

// ---------------------------------------------------------------- devices

fl_status adapter_device_count(int32_t* out_count) {
  *out_count = 0;
  return guarded([&] { *out_count = device_count(); });
}

fl_status device_properties(int32_t ordinal, fl_device_properties* out) {
  return guarded([&] {
    const Device& d = device(ordinal);
    out->struct_size = sizeof(*out);
    out->capabilities = FL_CAP_IN_PLACE;
    if (d.mode != MemoryMode::Buffer) out->capabilities |= FL_CAP_POINTERS;
    if (d.fine_grained) out->capabilities |= FL_CAP_HOST_VISIBLE;
    if (d.platform->num_devices > 1) out->capabilities |= FL_CAP_PEER;
    out->uuid = d.uuid.c_str();
    out->name = d.name.c_str();
    out->arch = d.arch.c_str();
    out->total_memory = d.total_memory;
    out->alignment = d.alignment;
    out->multi_processor_count = d.compute_units;
    out->max_allocation = d.max_allocation;
  });
}

fl_status memory_info(int32_t ordinal, uint64_t* out_free, uint64_t* out_total) {
  return guarded([&] {
    const Device& d = device(ordinal);
    *out_total = d.total_memory;
    *out_free = d.total_memory - std::min(d.total_memory, d.memory->used());
  });
}

fl_status device_synchronize(int32_t ordinal) {
  return guarded([&] { synchronize_device(device(ordinal)); });
}

// ---------------------------------------------------------------- memory

fl_status memory_alloc(int32_t ordinal, uint64_t bytes, fl_memory* out_memory) {
  *out_memory = fl_memory{nullptr, nullptr, 0};
  return guarded([&] { *out_memory = device(ordinal).memory->allocate(bytes); });
}

fl_status memory_free(int32_t ordinal, fl_memory memory) {
  return guarded([&] { device(ordinal).memory->release(memory); });
}

fl_status host_alloc(int32_t ordinal, uint64_t bytes, void** out_address) {
  *out_address = nullptr;
  return guarded([&] { *out_address = host_allocate(device(ordinal), bytes); });
}

fl_status host_free(int32_t ordinal, void* address) {
  return guarded([&] { host_release(device(ordinal), address); });
}

fl_status copy_h2d(fl_stream stream, fl_memory dst, const void* src, uint64_t bytes) {
  return guarded([&] { copy_to_device(stream_of(stream), dst, src, bytes); });
}

fl_status copy_d2h(fl_stream stream, void* dst, fl_memory src, uint64_t bytes) {
  return guarded([&] { copy_to_host(stream_of(stream), dst, src, bytes); });
}

fl_status copy_d2d(fl_stream stream, fl_memory dst, fl_memory src, uint64_t bytes) {
  return guarded([&] { copy_on_device(stream_of(stream), dst, src, bytes); });
}

fl_status copy_peer(fl_stream stream, int32_t dst_device, fl_memory dst, int32_t src_device, fl_memory src,
                    uint64_t bytes) {
  return guarded([&] {
    Stream& source = stream_of(stream);
    if (source.device != &device(src_device)) {
      fail(FL_STATUS_INVALID_ARGUMENT, "copy_peer from device " + std::to_string(src_device) +
                                           " on a stream of device " + std::to_string(source.device->ordinal));
    }
    return copy_to_peer(source, device(dst_device), dst, src, bytes);
  });
}

fl_status fill(fl_stream stream, fl_memory dst, uint8_t value, uint64_t bytes) {
  return guarded([&] { fill_device(stream_of(stream), dst, value, bytes); });
}

// ---------------------------------------------------------------- streams and events

fl_status stream_create(int32_t ordinal, int32_t priority, fl_stream* out_stream) {
  *out_stream = nullptr;
  return guarded([&] { *out_stream = reinterpret_cast<fl_stream>(create_stream(device(ordinal), priority)); });
}

fl_status stream_destroy(fl_stream stream) {
  return guarded([&] { destroy_stream(&stream_of(stream)); });
}

fl_status stream_query(fl_stream stream) {
  return guarded([&] { return query_stream(stream_of(stream)); });
}

fl_status stream_synchronize(fl_stream stream) {
  return guarded([&] { synchronize_stream(stream_of(stream)); });
}

fl_status stream_wait_event(fl_stream stream, fl_event event) {
  return guarded([&] { return wait_event(stream_of(stream), event_of(event)); });
}

fl_status event_create(int32_t ordinal, uint32_t flags, fl_event* out_event) {
  *out_event = nullptr;
  return guarded(
      [&] { *out_event = reinterpret_cast<fl_event>(new Event{&device(ordinal), (flags & FL_EVENT_TIMING) != 0}); });
}

fl_status event_destroy(fl_event event) {
  return guarded([&] { destroy_event(&event_of(event)); });
}

fl_status event_record(fl_event event, fl_stream stream) {
  return guarded([&] { record_event(event_of(event), stream_of(stream)); });
}

fl_status event_query(fl_event event) {
  return guarded([&] { return query_event(event_of(event)); });
}

fl_status event_synchronize(fl_event event) {
  return guarded([&] { synchronize_event(event_of(event)); });
}

fl_status event_elapsed(fl_event start, fl_event end, double* out_ms) {
  return guarded([&] { *out_ms = elapsed_ms(event_of(start), event_of(end)); });
}

fl_adapter make_table() {
  fl_adapter table{};
  table.struct_size = sizeof(table);
  table.abi_major = FL_ABI_MAJOR;
  table.abi_minor = FL_ABI_MINOR;
  table.name = "opencl";
  table.vendor = "FlagOS";
  table.version = "1.0.0";
  table.last_error = last_error;
  table.device_count = adapter_device_count;
  table.device_properties = device_properties;
  table.memory_info = memory_info;
  table.device_synchronize = device_synchronize;
  table.memory_alloc = memory_alloc;
  table.memory_free = memory_free;
  table.host_alloc = host_alloc;
  table.host_free = host_free;
  table.copy_h2d = copy_h2d;
  table.copy_d2h = copy_d2h;
  table.copy_d2d = copy_d2d;
  table.copy_peer = copy_peer;
  table.fill = fill;
  table.stream_create = stream_create;
  table.stream_destroy = stream_destroy;
  table.stream_query = stream_query;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait_event = stream_wait_event;
  table.event_create = event_create;
  table.event_destroy = event_destroy;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_synchronize = event_synchronize;
  table.event_elapsed = event_elapsed;
  table.kernel_find = kernel_find;
  table.configure = configure;
  return table;
}

}  // namespace
}  // namespace ocl

extern "C" FL_EXPORT const fl_adapter* fl_get_adapter(void) {
  static const fl_adapter table = ocl::make_table();
  return &table;
}
