// The vendors' drivers as OpenCL's loader will find them, put right before it looks; see icd.cpp.
#pragma once
#include <string>
#include <vector>

namespace ocl {

// Lives while the platforms are enumerated. Where a Python environment has Intel's runtime, whose own .icd file is
// wrong, the loader is given a folder with a right one and the system's: a temporary one, named by OCL_ICD_VENDORS
// unless the user has set that. Both are undone at the end.
class Vendors {
 public:
  Vendors();
  ~Vendors();
  Vendors(const Vendors&) = delete;
  Vendors& operator=(const Vendors&) = delete;

  // Loaders that such an environment brings along, for machines without one.
  const std::vector<std::string>& loaders() const { return loaders_; }

  // Why drivers that are installed could not be loaded, one sentence each.
  std::vector<std::string> failures() const;

 private:
  void make_folder(const std::vector<std::string>& drivers);
  std::string folder_;  // ours; empty if there was no need
  std::vector<std::string> files_, loaders_;
};

}  // namespace ocl
