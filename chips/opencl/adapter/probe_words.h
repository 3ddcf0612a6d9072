// What fl_opencl_probe and the adapter say to each other: the last line of the child's output.
#pragma once

namespace ocl {

constexpr char kProbeVersion[] = "1";  // changes with what is tried
constexpr char kProbeGood[] = "fl_opencl_probe: good";
constexpr char kProbeBad[] = "fl_opencl_probe: bad: ";  // and the reason

}  // namespace ocl
