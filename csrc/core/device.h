// The flat list of logical devices fl:0 … fl:N-1 over all adapters, opened on first use.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_fl/adapter.h"

namespace fl {

// The types a kernel can be asked for, as an index into the kernel table. The order is ours, not ABI.
enum class DType : uint8_t {
  Bool, UInt8, Int8, Int16, Int32, Int64, Float16, BFloat16, Float32, Float64, Complex64, Complex128,
  UInt16, UInt32, UInt64, Unsupported
};
constexpr int kNumDTypes = 16;
fl_dtype to_abi(DType type);
const char* dtype_name(DType type);  // "float32"

// What a profile says that kernels cannot take, beside what the adapter itself declares. 0: any.
struct Constraints {
  uint32_t flags = 0;  // FL_KERNEL_*
  int32_t max_ndim = 0;
  uint32_t alignment = 0;
  uint64_t max_numel = 0;
};

// What the user's configuration and a profile say of an adapter's devices. Plain data; Python fills it.
struct AdapterSpec {
  std::string path;          // the adapter's shared library
  std::string device_name;   // the profile's device_name; empty: the adapter's name
  std::string profile_path;  // for messages; may be empty
  int max_devices = -1;      // -1: all
  bool only_listed = false;  // true: UniOps missing from `native` are not native
  std::map<std::string, std::vector<std::string>> native;  // UniOp -> allowed dtype names; empty vector: `dtypes`
  std::vector<std::string> not_native;                     // UniOps pinned to another tier
  std::map<std::string, std::string> pins;                 // "aten::gelu" -> first tier allowed; read by the router
  std::vector<std::string> dtypes;                         // dtype names the chip has; empty: all
  std::vector<std::string> visible;                        // TORCH_FL_VISIBLE_DEVICES' selectors; empty: all
  uint64_t memory_limit_bytes = 0;                         // 0: what the device reports
  double memory_fraction = 1.0;
  uint64_t prealloc_bytes = 0;
  uint64_t min_block_bytes = 512;
  uint64_t alignment = 64;
  uint64_t max_split_bytes = 0;  // 0: no limit
  double garbage_collection_threshold = 0.0;  // 0: off
  bool expandable_segments = true;  // where the adapter can reserve address ranges
  Constraints constraints;                            // of all kernels
  std::map<std::string, Constraints> op_constraints;  // UniOp -> more of them
  std::map<std::string, std::string> match;    // "name", "arch", "uuid" -> glob; all must fit a device of this chip
  std::map<std::string, std::string> options;  // of the library, for its configure()
  std::optional<std::string> cache_dir;  // adapters keep files in it, each in its own folder; "": nowhere. Else unsaid
  uint64_t cache_max_mb = 0;             // 0: no limit
};

struct Kernel {  // one resolved entry; lives for ever
  fl_kernel k;
  int uniop;
};

class Allocator;
class StreamPool;

class Device {
 public:
  int index = 0;              // N of fl:N
  int ordinal = 0;            // the adapter's own number
  const fl_adapter* adapter = nullptr;
  std::shared_ptr<const AdapterSpec> spec;
  uint32_t capabilities = 0;  // FL_CAP_*
  uint64_t total_memory = 0;  // after limit and fraction
  uint64_t max_allocation = 0;  // most bytes of one memory_alloc; 0: no limit of its own
  uint32_t alignment = 64;
  uint32_t multi_processor_count = 0;
  std::string chip, name, arch, uuid;  // chip = spec->device_name
  Allocator* allocator = nullptr;
  StreamPool* streams = nullptr;

  bool has(uint32_t capability) const { return (capabilities & capability) != 0; }

  // The kernel for a UniOp, or nullptr: none, not declared by the profile, or switched off. Lock-free after the first
  // call per (uniop, in, out).
  const Kernel* kernel(int uniop, DType in, DType out) {
    const Kernel* found = table_[(uniop * kNumDTypes + static_cast<int>(in)) * kNumDTypes + static_cast<int>(out)].load(
        std::memory_order_acquire);
    if (__builtin_expect(found == nullptr, 0)) return resolve_kernel(uniop, in, out);
    return found == kAbsent ? nullptr : found;
  }
  // Forgets all resolved kernels (after routing switches changed). The adapter is not asked again for what it answered.
  void reset_kernels();
  // The whole chip is lost: from now on whatever would talk to it raises.
  void mark_lost() { lost_.store(true); }
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

  explicit Device(int num_uniops);
  ~Device();

 private:
  static const Kernel* const kAbsent;
  const Kernel* resolve_kernel(int uniop, DType in, DType out);
  friend // device -1: all that are open. Raises for a name that is no UniOp.
void set_uniop_enabled(int device, const std::string& uniop, bool enabled);
  struct Routing;  // switches, and what the adapter answered
  std::unique_ptr<Routing> routing_;
  std::unique_ptr<std::atomic<const Kernel*>[]> table_;
  size_t table_size_;
  std::atomic<bool> lost_{false};
};

// UniOp names by id; set once by the bridge from generated code before the first device opens. `names[id]` may be null.
void set_uniop_names(const char* const* names, int count);
const char* uniop_name(int id);
int uniop_count();

// Called once, on first use of a device, to learn which adapters to open. Python reads config and profiles here.
using Discover = std::function<std::vector<AdapterSpec>()>;
void set_discover(Discover discover);
// Opens (or appends, after first use) the spec's devices; returns the new devices' indices. Raises with the reason.
std::vector<int> add_adapter(const AdapterSpec& spec);
// What discovery found, for `diagnose`: one line per spec that could not be opened.
struct AdapterFailure { std::string path, reason; };
std::vector<AdapterFailure> adapter_failures();

int device_count() noexcept;      // opens devices on first use; failures are kept in adapter_failures()
bool devices_opened() noexcept;   // without opening
Device& device(int index);        // raises: "fl:7 does not exist: there are 2 fl devices (fl:0, fl:1)"

int current_device() noexcept;    // thread-local; 0 at first
void set_current_device(int index);
int exchange_device(int index);
void synchronize(int device);     // all streams; reports asynchronous failures

// After fork() in a child of a process that had opened devices: true, and every call above raises.
bool in_bad_fork() noexcept;

// Native kernels on or off as a whole (routing switches); bumps nothing, calls reset_kernels on all devices.
void set_native_enabled(bool enabled);
// device -1: all that are open. Raises for a name that is no UniOp.
void set_uniop_enabled(int device, const std::string& uniop, bool enabled);

// A loaded adapter table, checked: name, versions, required functions. Raises with path and reason.
const fl_adapter* open_adapter(const std::string& path);

}  // namespace fl
