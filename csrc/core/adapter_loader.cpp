// Opens an adapter's shared library and checks its table before anything is called: a broken library is an error with
// path, what was found, what was expected and what to do, never a crash.
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include <map>
#include <mutex>

#include "elf_check.h"
#include "internal.h"

namespace fl {
namespace {

[[noreturn]] void refuse(fl_status status, const std::string& path, const std::string& reason) {
  raise(status, "Adapter " + path + " cannot be used: " + reason);
}

std::string version_text(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

void* open_library(const std::string& path) {
  const std::string damage = elf_damage(path);
  if (!damage.empty()) refuse(FL_STATUS_INVALID_ARGUMENT, path, damage);
  dlerror();
  void* library = dlopen(path.c_str(), RTLD_LOCAL | RTLD_NOW);
  if (library != nullptr) return library;
  const char* error = dlerror();
  const std::string text = error != nullptr ? error : "no reason given";
  std::string advice;
  if (text.find("cannot open shared object file") != std::string::npos) {
    advice =
        ". A library that it depends on is missing: install the vendor's SDK, or add its folder to LD_LIBRARY_PATH"
        " (`ldd " +
        path + "` lists what is missing)";
  } else if (text.find("undefined symbol") != std::string::npos || text.find("version `") != std::string::npos) {
    advice =
        ". A library that it depends on has another version than the adapter was built for: install the version of "
        "the vendor's SDK that the adapter needs, or rebuild the adapter";
  }
  refuse(FL_STATUS_UNAVAILABLE, path, "the dynamic linker says: " + text + advice + ".");
}

const fl_adapter* read_table(const std::string& path, void* library) {
  dlerror();
  void* symbol = dlsym(library, FL_ENTRY_SYMBOL);
  if (symbol == nullptr) {
    refuse(FL_STATUS_INVALID_ARGUMENT, path,
           "it does not export the symbol " FL_ENTRY_SYMBOL
           ". Expected a library built from torch_fl/adapter.h that "
           "defines `FL_EXPORT const fl_adapter* " FL_ENTRY_SYMBOL "(void)` with C linkage.");
  }
  const fl_adapter* table = nullptr;
  try {
    table = reinterpret_cast<fl_get_adapter_fn>(symbol)();
  } catch (...) {
    refuse(FL_STATUS_INTERNAL, path,
           FL_ENTRY_SYMBOL "() threw a C++ exception. It must return its table and open nothing.");
  }
  if (table == nullptr) {
    refuse(FL_STATUS_INVALID_ARGUMENT, path,
           FL_ENTRY_SYMBOL "() returned NULL. Expected a table that lives as long as the process.");
  }
  return table;
}

void check_header(const std::string& path, const fl_adapter& table) {
  constexpr uint32_t kHead = offsetof(fl_adapter, abi_minor) + sizeof(uint16_t);
  constexpr uint32_t kLeast = offsetof(fl_adapter, name) + sizeof(const char*);
  constexpr uint32_t kMost = 1u << 16;  // more is not a table but garbage
  const std::string host = version_text(FL_ABI_MAJOR, FL_ABI_MINOR);
  if (table.struct_size >= kHead && table.struct_size <= kMost && table.abi_major != FL_ABI_MAJOR) {
    const bool newer = table.abi_major > FL_ABI_MAJOR;
    refuse(
        FL_STATUS_FAILED_PRECONDITION, path,
        "it has adapter ABI " + version_text(table.abi_major, table.abi_minor) + ", but this Torch-FL has ABI " + host +
            " and the major numbers must be equal. " +
            (newer ? "Install a newer Torch-FL, or an adapter built for ABI major " + std::to_string(FL_ABI_MAJOR) + "."
                   : "Install a newer adapter, or rebuild it with this Torch-FL's torch_fl/adapter.h."));
  }
  if (table.struct_size < kLeast || table.struct_size > kMost) {
    refuse(FL_STATUS_INVALID_ARGUMENT, path,
           "its table says struct_size " + std::to_string(table.struct_size) + ", expected " + std::to_string(kLeast) +
               " to " + std::to_string(kMost) + " (" + std::to_string(sizeof(fl_adapter)) + " for ABI " + host +
               "). Set .struct_size = sizeof(fl_adapter).");
  }
  bool good = table.name != nullptr && *table.name != '\0';
  for (const char* c = table.name; good && *c != '\0'; ++c) {
    good = (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '_' || *c == '-';
  }
  if (!good) {
    refuse(FL_STATUS_INVALID_ARGUMENT, path,
           std::string("its table's name is ") +
               (table.name != nullptr ? "'" + std::string(table.name) + "'" : "NULL") +
               ", expected one or more of [a-z0-9_-], such as \"acme\".");
  }
}

class Required {
 public:
  explicit Required(const fl_adapter& table) : table_(table) {}
  void need(bool present, size_t end, const char* name) {
    if (present) return;
    if (!missing_.empty()) missing_ += ", ";
    missing_ += std::string(name) + (table_.struct_size < end ? " (the table ends before it)" : " (NULL)");
  }
  const std::string& missing() const { return missing_; }

 private:
  const fl_adapter& table_;
  std::string missing_;
};

void check_functions(const std::string& path, const fl_adapter& table) {
  const fl_adapter* a = &table;
  Required required(table);
#define FL_NEED(member) required.need(FL_HAS(a, member), offsetof(fl_adapter, member) + sizeof(a->member), #member)
  FL_NEED(last_error);
  FL_NEED(device_count);
  FL_NEED(device_properties);
  FL_NEED(memory_info);
  FL_NEED(memory_alloc);
  FL_NEED(memory_free);
  FL_NEED(copy_h2d);
  FL_NEED(copy_d2h);
  FL_NEED(copy_d2d);
  FL_NEED(fill);
  FL_NEED(stream_create);
  // Groups that are optional as a whole.
  if (!FL_HAS(a, device_synchronize)) FL_NEED(stream_synchronize);
  if (FL_HAS(a, host_alloc)) FL_NEED(host_free);
  if (FL_HAS(a, event_create)) {
    FL_NEED(event_destroy);
    FL_NEED(event_record);
    FL_NEED(event_query);
    FL_NEED(event_synchronize);
  }
#undef FL_NEED
  if (!required.missing().empty()) {
    refuse(FL_STATUS_INVALID_ARGUMENT, path,
           std::string("adapter '") + table.name + "' (struct_size " + std::to_string(table.struct_size) + " of " +
               std::to_string(sizeof(fl_adapter)) + ", ABI " + version_text(table.abi_major, table.abi_minor) +
               ") lacks required functions: " + required.missing() +
               ". Implement them; torch_fl/adapter.h says which are "
               "required.");
  }
}

struct Opened {
  std::mutex mutex;
  std::map<std::string, const fl_adapter*> by_path;
};

Opened& opened_adapters() {
  static Opened* all = new Opened;
  return *all;
}

}  // namespace

std::string real_path(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return "";
  std::string text = resolved;
  ::free(resolved);
  return text;
}

const fl_adapter* open_adapter(const std::string& path) {
  const std::string canonical = real_path(path);
  if (canonical.empty()) {
    refuse(FL_STATUS_NOT_FOUND, path.empty() ? "''" : path,
           "there is no such file. Install the chip's adapter, or correct `adapter` in the chip's profile.");
  }
  Opened& all = opened_adapters();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.by_path.find(canonical);
  if (found != all.by_path.end()) return found->second;
  const fl_adapter* table = read_table(canonical, open_library(canonical));
  check_header(canonical, *table);
  check_functions(canonical, *table);
  all.by_path.emplace(canonical, table);
  return table;
}

}  // namespace fl
