// Built programs on disk; see program_cache.cpp. Used by ProgramStore::build alone.
#pragma once
#include <string>

#include "device.h"

namespace ocl {

// True with a program made from the stored binary of this text and these options, still to be built. False if there is
// none; a damaged one is removed.
bool load_binary(const Device& device, const std::string& key_text, const std::string& options, cl_program* out);

// Stores the binary of a built program. Failing to is no error: the next process builds it again.
void save_binary(const Device& device, const std::string& key_text, const std::string& options, cl_program program);

}  // namespace ocl
