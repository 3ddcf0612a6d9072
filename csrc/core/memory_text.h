// Numbers of bytes as people read them, for error texts and log lines.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

namespace fl {

inline std::string bytes_text(uint64_t bytes) {  // "1.50 GiB"
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace fl
