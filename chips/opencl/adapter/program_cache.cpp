// Built programs on disk, one file each under <cache_dir>/programs: a header, then the driver's binary. Written to a
// file of its own and renamed, so that processes need no lock and see all of an entry or nothing; checked before use,
// since some drivers crash on a damaged binary. The oldest entries go when the folder outgrows its limit.
#include "program_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "disk.h"
#include "error.h"
#include "runtime.h"

namespace ocl {
namespace {

constexpr int kFormat = 1;  // changes with the header, or with what the key holds

struct Header {
  char magic[8];
  Hash key;
  uint64_t bytes;
  Hash checksum;
};
constexpr char kMagic[8] = {'F', 'L', 'C', 'L', 'P', 'R', 'G', '1'};

Hash key_of(const Device& device, const std::string& text, const std::string& options) {
  Hasher hasher;
  hasher.add(std::to_string(kFormat));
  hasher.add(device.platform->name);
  hasher.add(device.platform->version);
  hasher.add(device.name);
  hasher.add(device.driver);
  if (device.host_cpu) hasher.add(device.uuid);  // the name need not tell which instructions the processor has
  hasher.add(options);
  hasher.add(text);
  return hasher.value();
}

std::string folder() { return options().cache_dir + "/programs"; }

std::string path_of(const Hash& key) { return folder() + "/" + key.text() + ".bin"; }

// The binary, or nothing if the entry is not what was written under this key.
std::vector<unsigned char> read_entry(const File& file, const Hash& key) {
  struct stat info{};
  Header header{};
  if (fstat(file.descriptor(), &info) != 0 || !file.read_all(&header, sizeof(header))) return {};
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 || !(header.key == key)) return {};
  if (header.bytes == 0 || static_cast<uint64_t>(info.st_size) != sizeof(header) + header.bytes) return {};
  std::vector<unsigned char> binary(header.bytes);
  if (!file.read_all(binary.data(), binary.size())) return {};
  if (!(hash_of(binary.data(), binary.size()) == header.checksum)) return {};
  return binary;
}

bool write_entry(const std::string& path, const Hash& key, const std::vector<unsigned char>& binary) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.key = key;
  header.bytes = binary.size();
  header.checksum = hash_of(binary.data(), binary.size());
  return write_whole(path, {{&header, sizeof(header)}, {binary.data(), binary.size()}});
}

struct Entry {
  std::string path;
  uint64_t bytes;
  time_t used;
};

// Removes the entries unused for longest until what is left is well below the limit. Other processes may do the same.
void shrink() {
  DIR* listing = opendir(folder().c_str());
  if (listing == nullptr) return;
  std::vector<Entry> entries;
  uint64_t total = 0;
  while (const dirent* one = readdir(listing)) {
    struct stat info{};
    const std::string path = folder() + "/" + one->d_name;
    if (one->d_name[0] == '.' || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    entries.push_back({path, static_cast<uint64_t>(info.st_size), info.st_mtime});
    total += static_cast<uint64_t>(info.st_size);
  }
  closedir(listing);
  const uint64_t limit = options().cache_max_bytes;
  if (total <= limit) return;
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= limit / 4 * 3) break;
    if (unlink(entry.path.c_str()) == 0) total -= entry.bytes;
  }
}

// The driver's binary for this device; empty if it gives none.
std::vector<unsigned char> binary_of(const Device& device, cl_program program) {
  cl_uint count = 0;
  if (cl().GetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof(count), &count, nullptr) != CL_SUCCESS) return {};
  std::vector<cl_device_id> devices(count);
  std::vector<size_t> sizes(count);
  if (cl().GetProgramInfo(program, CL_PROGRAM_DEVICES, count * sizeof(cl_device_id), devices.data(), nullptr) !=
          CL_SUCCESS ||
      cl().GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, count * sizeof(size_t), sizes.data(), nullptr) !=
          CL_SUCCESS)
    return {};
  std::vector<std::vector<unsigned char>> binaries(count);
  std::vector<unsigned char*> places(count);
  size_t wanted = count;
  for (size_t i = 0; i < count; ++i) {
    binaries[i].resize(sizes[i]);
    places[i] = sizes[i] != 0 ? binaries[i].data() : nullptr;
    if (devices[i] == device.id) wanted = i;
  }
  if (wanted == count || sizes[wanted] == 0 ||
      cl().GetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof(unsigned char*), places.data(), nullptr) !=
          CL_SUCCESS)
    return {};
  return std::move(binaries[wanted]);
}

}  // namespace

bool load_binary(const Device& device, const std::string& key_text, const std::string& options_text, cl_program* out) {
  if (options().cache_dir.empty()) return false;
  const Hash key = key_of(device, key_text, options_text);
  const std::string path = path_of(key);
  const File file(path, O_RDONLY);
  if (!file.good()) return false;
  const std::vector<unsigned char> binary = read_entry(file, key);
  cl_int status = CL_SUCCESS, code = CL_SUCCESS;
  if (!binary.empty()) {
    const size_t bytes = binary.size();
    const unsigned char* data = binary.data();
    *out = cl().CreateProgramWithBinary(device.context(), 1, &device.id, &bytes, &data, &status, &code);
    if (*out != nullptr && code == CL_SUCCESS && status == CL_SUCCESS) {
      futimens(file.descriptor(), nullptr);  // used now
      return true;
    }
    if (*out != nullptr) cl().ReleaseProgram(*out);
    *out = nullptr;
  }
  unlink(path.c_str());
  return false;
}

void save_binary(const Device& device, const std::string& key_text, const std::string& options_text,
                 cl_program program) {
  if (options().cache_dir.empty()) return;
  guarded([&] {
    const std::vector<unsigned char> binary = binary_of(device, program);
    if (binary.empty() || binary.size() + sizeof(Header) > options().cache_max_bytes) return;
    const Hash key = key_of(device, key_text, options_text);
    if (!write_entry(path_of(key), key, binary)) return;
    static std::atomic<unsigned> written{0};
    constexpr unsigned kBetweenLooks = 16;
    if (written++ % kBetweenLooks == 0) shrink();
  });
}

}  // namespace ocl
