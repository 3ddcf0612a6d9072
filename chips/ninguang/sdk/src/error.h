// Results and their messages: what this thread failed at last, and the borders that turn exceptions into results.
// fail() itself is declared in kernel.h, because kernels use it too.
#pragma once
#include <exception>
#include <new>

#include "kernel.h"

namespace ng {

constexpr int kMessageBytes = 512;

// This thread's last message; empty if the last failure left none.
const char* message();
void clear_message();

// Turns whatever is being thrown into a result. Only inside a catch block.
ngResult convert_exception(const char* where) noexcept;

}  // namespace ng
