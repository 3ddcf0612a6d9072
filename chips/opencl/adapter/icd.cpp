// Where OpenCL's loader is found.
#include "icd.h"

namespace ocl {

std::vector<std::string> loader_names() { return {"libOpenCL.so.1", "libOpenCL.so"}; }

}  // namespace ocl
