// What the adapter knows of an OpenCL device: platform, context, limits, memory modes, streams and scratch memory.
// Knows Torch-FL's C ABI and OpenCL, nothing else. Counterparts: device.cpp, memory.cpp, stream.cpp, kernel.h
// (kernels).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cl_api.h"
#include "torch_fl/adapter.h"

namespace ocl {

// How device memory is named towards OpenCL.
enum class MemoryMode : uint8_t {
  Usm,     // cl_intel_unified_shared_memory: pointers
  Svm,     // OpenCL 2 shared virtual memory: pointers
  Buffer,  // cl_mem handle + offset
};

struct Platform {
  cl_platform_id id = nullptr;
  std::string name, vendor, version;
  cl_context context = nullptr;  // of all its devices, so that copies and events cross between them
  int num_devices = 0;
  UsmApi usm;  // null functions where the platform has no USM
};

// The types that kernels know. The order is this adapter's own.
enum class Type : uint8_t { Bool, UInt8, Int8, Int16, Int32, Int64, Float16, BFloat16, Float32, Float64, None };
constexpr int kNumTypes = static_cast<int>(Type::None);

Type type_of(fl_dtype dtype);
int size_of(Type type);           // bytes
const char* token_of(Type type);  // the type's name in kernels/types.cl: "b8", "f32" …
constexpr uint32_t bit(Type type) { return 1u << static_cast<int>(type); }

class DeviceMemory;
class Program;
class ProgramStore;
class Staging;

struct Stream;

struct Device {
  int ordinal = 0;
  Platform* platform = nullptr;
  cl_device_id id = nullptr;
  std::string name, driver, uuid, arch;
  std::string language = "1.2";  // for -cl-std: 3.0 where the device has it (2.x breaks vload and vstore on PoCL 3)
  bool cpu = false;              // CL_DEVICE_TYPE_CPU: kernels then take explicit vectors and one work-item per tile
  bool fp16 = false;             // arithmetic in half (storage in half is always there)
  bool fp64 = false;
  bool int64_atomics = false;
  bool fine_grained = false;  // the host may touch device memory while the device is idle
  bool subgroups = false;
  MemoryMode mode = MemoryMode::Buffer;
  uint64_t total_memory = 0, max_allocation = 0, local_memory = 0;
  uint32_t alignment = 64, compute_units = 1, max_group = 1;
  uint32_t types = 0;        // bit(Type) of those that kernels may use here
  bool host_cpu = false;     // the device is the host's processor, whatever variant of kernels it takes
  bool priorities = false;   // queues may have a priority
  uint32_t flush_every = 1;  // launches after which a queue is flushed
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<ProgramStore> programs;
  std::shared_mutex streams_mutex;
  std::set<Stream*> streams;  // the living ones

  cl_context context() const { return platform->context; }
};

// A place in device memory as a kernel argument: a pointer, or a buffer with an offset.
struct Place {
  void* pointer = nullptr;  // Usm, Svm
  cl_mem buffer = nullptr;  // Buffer
  uint64_t offset = 0;      // bytes, Buffer only
  static Place of(const fl_memory& memory) {
    if (memory.handle == nullptr) return {memory.address, nullptr, 0};
    return {nullptr, static_cast<cl_mem>(memory.handle), memory.offset};
  }
  Place plus(uint64_t bytes) const {
    if (buffer != nullptr) return {nullptr, buffer, offset + bytes};
    return {static_cast<char*>(pointer) + bytes, nullptr, 0};
  }
};

// fl_stream is a pointer to this: an in-order queue. `mutex` is held while an operation of one or more commands is
// queued, so that two threads cannot interleave theirs (scratch memory is shared by all operations of a stream).
struct Stream {
  Device* device = nullptr;
  cl_command_queue queue = nullptr;
  std::mutex mutex;

  // Scratch memory for the operation being queued; operations of one stream run in order, so one piece serves all.
  // Under `mutex`. Throws Failure if there is no memory.
  Place scratch(uint64_t bytes);
  // Two int32 words that kernels write: [0] != 0: an index was out of range, [1] != 0: integer division by zero. Read
  // and cleared by the next synchronisation. Under `mutex`.
  Place error_words();
  // Called after each launch: now and then the queue is flushed, so that work starts without a synchronisation.
  void queued();

  Place scratch_place;
  uint64_t scratch_bytes = 0;
  Place error_place;
  bool errors_possible = false;  // a kernel that can fail was queued since the last look

  // Of stream.cpp and copy.cpp.
  uint64_t work = 0;          // commands queued so far
  uint32_t unflushed = 0;     // launches since the last flush
  cl_event marker = nullptr;  // behind the first `marked` commands: what a query looks at
  uint64_t marked = 0;
  std::vector<Place> retired;  // scratch memory that queued work may still use
  std::unique_ptr<Staging> staging;

  Stream(Device& device, cl_command_queue queue);
  ~Stream();
};

Device& device(int ordinal);  // throws Failure

}  // namespace ocl
