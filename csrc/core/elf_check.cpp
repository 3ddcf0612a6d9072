// Reads the ELF header, the program headers and the extent of the sections, and compares them with the file's length.
#include "elf_check.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

namespace fl {
namespace {

#if defined(__x86_64__)
constexpr int kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr int kMachine = EM_RISCV;
#elif defined(__powerpc64__)
constexpr int kMachine = EM_PPC64;
#else
constexpr int kMachine = EM_NONE;  // unknown here: the dynamic linker decides
#endif

class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  int fd() const { return fd_; }
  bool read_at(void* to, size_t bytes, uint64_t at) const {
    return pread(fd_, to, bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes);
  }

 private:
  int fd_;
};

std::string truncated(uint64_t size, uint64_t needed) {
  return "the file is truncated: it has " + std::to_string(size) + " bytes, its headers promise at least " +
         std::to_string(needed) + ". Copy or install it again.";
}

// The end of [offset, offset + bytes), or the largest number if that overflows.
uint64_t end_of(uint64_t offset, uint64_t bytes) { return offset + bytes < offset ? UINT64_MAX : offset + bytes; }

}  // namespace

std::string elf_damage(const std::string& path) {
  const File file(path);
  struct stat info;
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0) {
    return std::string("it cannot be read: ") + strerror(errno) + ". Check its permissions.";
  }
  if (!S_ISREG(info.st_mode)) return "it is not a regular file. Expected a shared library (.so).";
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  Elf64_Ehdr header;
  if (size >= SELFMAG) {
    unsigned char magic[SELFMAG];
    if (!file.read_at(magic, sizeof magic, 0) || memcmp(magic, ELFMAG, SELFMAG) != 0) {
      return "it is not an ELF shared library (its first bytes are not \\x7fELF). Expected a library built for Linux.";
    }
  }
  if (size < sizeof header || !file.read_at(&header, sizeof header, 0)) return truncated(size, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "it is a 32-bit library. Expected a 64-bit one.";
  if (kMachine != EM_NONE && header.e_machine != kMachine) {
    return "it was built for another processor (ELF machine " + std::to_string(header.e_machine) +
           ", this process is " + std::to_string(kMachine) + "). Install the adapter for this machine.";
  }
  if (header.e_type != ET_DYN) {
    return "it is not a shared library (ELF type " + std::to_string(header.e_type) + ", expected " +
           std::to_string(ET_DYN) + "). Link it with -shared.";
  }
  const uint64_t sections = end_of(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize);
  if (header.e_shoff != 0 && sections > size) return truncated(size, sections);
  const uint64_t programs = end_of(header.e_phoff, uint64_t{header.e_phnum} * header.e_phentsize);
  if (programs > size) return truncated(size, programs);
  if (header.e_phnum == 0 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return "its program headers are damaged. Copy or install it again.";
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!file.read_at(segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff)) {
    return truncated(size, programs);
  }
  for (const Elf64_Phdr& segment : segments) {
    const uint64_t end = end_of(segment.p_offset, segment.p_filesz);
    if (segment.p_type == PT_LOAD && end > size) return truncated(size, end);
  }
  return "";
}

}  // namespace fl
