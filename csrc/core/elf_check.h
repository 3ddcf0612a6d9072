// Says what is wrong with a shared library's file before the dynamic linker maps it: a truncated one would end the
// process with SIGBUS.
#pragma once
#include <string>

namespace fl {

// Empty if the file can be mapped, else one sentence with what was found and expected.
std::string elf_damage(const std::string& path);

}  // namespace fl
