// Small means for what the adapter keeps on disk: keys, files, and writing a file in one step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace ocl {

struct Hash {
  uint64_t high, low;
  bool operator==(const Hash& other) const { return high == other.high && low == other.low; }
  std::string text() const;  // 32 hexadecimal digits
};

// FNV-1a in 128 bits.
class Hasher {
 public:
  void add(const void* data, size_t bytes);
  void add(const std::string& text) { add(text.c_str(), text.size() + 1); }  // the end is part of it
  Hash value() const { return {static_cast<uint64_t>(state_ >> 64), static_cast<uint64_t>(state_)}; }

 private:
  unsigned __int128 state_ = (static_cast<unsigned __int128>(0x6c62272e07bb0142) << 64) | 0x62b821756295c58d;
};
Hash hash_of(const void* data, size_t bytes);

// A file descriptor that is closed at the end. `flags` as for open(2).
class File {
 public:
  File(const std::string& path, int flags);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool good() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  bool read_all(void* to, size_t bytes) const;
  bool write_all(const void* from, size_t bytes) const;

 private:
  int descriptor_;
};

std::string read_text(const std::string& path);  // empty if there is no such file

struct Piece {
  const void* data;
  size_t bytes;
};
// Writes the pieces to a file of its own and renames it, making folders as needed: others see all or nothing.
// False if that fails, as on a full disk; then nothing is left behind.
bool write_whole(const std::string& path, std::initializer_list<Piece> pieces);

}  // namespace ocl
