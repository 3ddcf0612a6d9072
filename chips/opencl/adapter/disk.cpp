// Files and keys; see disk.h.
#include "disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

namespace ocl {
namespace {

bool make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST && errno != EROFS) return false;
    if (end == std::string::npos) return true;
  }
}

}  // namespace

std::string Hash::text() const {
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return digits;
}

void Hasher::add(const void* data, size_t bytes) {
  constexpr unsigned __int128 kPrime = (static_cast<unsigned __int128>(1) << 88) | 0x13B;
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) state_ = (state_ ^ at[i]) * kPrime;
}

Hash hash_of(const void* data, size_t bytes) {
  Hasher hasher;
  hasher.add(data, bytes);
  return hasher.value();
}

File::File(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool File::read_all(void* to, size_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes != 0) {
    const ssize_t got = ::read(descriptor_, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool File::write_all(const void* from, size_t bytes) const {
  const auto* at = static_cast<const char*>(from);
  while (bytes != 0) {
    const ssize_t put = ::write(descriptor_, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

std::string read_text(const std::string& path) {
  const File file(path, O_RDONLY);
  struct stat info{};
  if (!file.good() || fstat(file.descriptor(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  std::string text(static_cast<size_t>(info.st_size), '\0');
  return file.read_all(text.data(), text.size()) ? text : "";
}

bool write_whole(const std::string& path, std::initializer_list<Piece> pieces) {
  static std::atomic<unsigned> number{0};
  if (!make_folders(path.substr(0, path.rfind('/')))) return false;
  const std::string draft = path + "." + std::to_string(getpid()) + "." + std::to_string(number++) + ".draft";
  bool good = false;
  {
    const File file(draft, O_CREAT | O_EXCL | O_WRONLY);
    if (!file.good()) return false;
    good = true;
    for (const Piece& piece : pieces) good = good && file.write_all(piece.data, piece.bytes);
  }
  good = good && rename(draft.c_str(), path.c_str()) == 0;
  if (!good) unlink(draft.c_str());
  return good;
}

}  // namespace ocl
