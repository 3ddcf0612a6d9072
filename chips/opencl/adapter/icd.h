// Where OpenCL's loader and the vendors' drivers are found; see icd.cpp.
#pragma once
#include <string>
#include <vector>

namespace ocl {

// What to try with dlopen, best first.
std::vector<std::string> loader_names();

}  // namespace ocl
