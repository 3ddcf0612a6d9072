// Tries a platform in a child process before this one uses it: a driver's compiler may crash or hang; see probe.cpp.
#pragma once
#include <string>

#include "discovery.h"

namespace ocl {

// Empty if the platform may be used, else why not. Drivers known to be good are not tried unless option `probe` says
// always. The answer is kept on disk until the platform or its driver changes.
std::string probe(const FoundPlatform& platform);

}  // namespace ocl
