// Errors of the core: one place turns a vendor's status into an exception. Knows no PyTorch: the bridge installs a
// raiser that throws PyTorch's exception types instead of fl::Error.
#pragma once
#include <stdexcept>
#include <string>

#include "torch_fl/adapter.h"

namespace fl {

class Error : public std::runtime_error {
 public:
  Error(fl_status status, const std::string& what) : std::runtime_error(what), status(status) {}
  const fl_status status;
};

// "INVALID_ARGUMENT"; vendor codes read "VENDOR(4099)".
std::string status_name(fl_status status);

// Throws through the installed raiser, else fl::Error.
using Raiser = void (*)(fl_status status, const std::string& message);
void set_raiser(Raiser raiser);
[[noreturn]] void raise(fl_status status, const std::string& message);

// Raises unless status is OK. The text: "<what> failed on fl:1 (acme): Invalid argument (ACME_MISALIGNED):
// <the vendor's message>". Reads the adapter's last_error().
[[noreturn]] void raise_status(const fl_adapter& adapter, int device, fl_status status, const char* what);

}  // namespace fl
