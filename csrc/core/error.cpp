// Turns an adapter's status and last_error() into one exception with a text that keeps the vendor's code and words.
#include "error.h"

#include <atomic>

#include "internal.h"
#include "make_room.h"

namespace fl {
namespace {

struct StatusText {
  const char* name;
  const char* words;
};

constexpr StatusText kStatusTexts[] = {
    {"OK", "Success"},
    {"CANCELLED", "Cancelled"},
    {"UNKNOWN", "Unknown error"},
    {"INVALID_ARGUMENT", "Invalid argument"},
    {"TIMEOUT", "Timeout"},
    {"NOT_FOUND", "Not found"},
    {"ALREADY_EXISTS", "Already exists"},
    {"PERMISSION_DENIED", "Permission denied"},
    {"OUT_OF_MEMORY", "Out of memory"},
    {"FAILED_PRECONDITION", "Failed precondition"},
    {"ABORTED", "Aborted"},
    {"OUT_OF_RANGE", "Out of range"},
    {"UNIMPLEMENTED", "Not implemented"},
    {"INTERNAL", "Internal error"},
    {"UNAVAILABLE", "Unavailable"},
    {"DEVICE_LOST", "Device lost"},
    {"NOT_READY", "Not ready"},
};
constexpr int kNumStatusTexts = sizeof(kStatusTexts) / sizeof(kStatusTexts[0]);

bool is_canonical(fl_status status) { return status >= 0 && status < kNumStatusTexts; }

std::atomic<Raiser> installed_raiser{nullptr};
thread_local int plain_errors = 0;

template <class Field>
bool error_has(const fl_error* error, const Field& field) {
  const size_t end = reinterpret_cast<const char*>(&field + 1) - reinterpret_cast<const char*>(error);
  return error->struct_size >= end;
}

}  // namespace

PlainErrors::PlainErrors() { ++plain_errors; }
PlainErrors::~PlainErrors() { --plain_errors; }

std::string status_name(fl_status status) {
  if (is_canonical(status)) return kStatusTexts[status].name;
  if (status >= FL_STATUS_VENDOR_FIRST && status <= 65535) return "VENDOR(" + std::to_string(status) + ")";
  return "STATUS(" + std::to_string(status) + ")";
}

void set_raiser(Raiser raiser) { installed_raiser.store(raiser); }

void raise(fl_status status, const std::string& message) {
  if (plain_errors == 0) {
    if (const Raiser raiser = installed_raiser.load()) raiser(status, message);
  }
  throw Error(status, message);
}

// "Invalid argument (NG_ERROR_MISALIGNED): message", as much of it as the adapter tells.
std::string adapter_words(const fl_adapter& adapter, fl_status status) {
  std::string text = is_canonical(status) ? kStatusTexts[status].words : status_name(status);
  const fl_error* error = FL_HAS(&adapter, last_error) ? adapter.last_error() : nullptr;
  if (error == nullptr) return text;
  const char* name = error_has(error, error->vendor_name) ? error->vendor_name : nullptr;
  const int32_t code = error_has(error, error->vendor_code) ? error->vendor_code : 0;
  const char* message = error_has(error, error->message) ? error->message : nullptr;
  if (name != nullptr && *name != '\0') {
    text += std::string(" (") + name + ")";
  } else if (code != 0) {
    text += " (vendor code " + std::to_string(code) + ")";
  }
  if (message != nullptr && *message != '\0') text += std::string(": ") + message;
  return text;
}

void raise_status(const fl_adapter& adapter, int device, fl_status status, const char* what) {
  const std::string words = adapter_words(adapter, status);
  Device* const found = find_device(device);
  std::string text = std::string(what) + " failed on ";
  text += found != nullptr ? device_label(*found) : std::string("adapter '") + adapter.name + "'";
  text += ": " + words;
  if (status == FL_STATUS_OUT_OF_MEMORY && found != nullptr) {
    const std::string memory = memory_words(*found);
    if (!memory.empty()) text += ". " + device_label(*found) + " is out of memory. " + memory + ".";
  }
  if (status == FL_STATUS_DEVICE_LOST && found != nullptr) remember_lost(device, words);
  raise(is_canonical(status) ? status : static_cast<fl_status>(FL_STATUS_INTERNAL), text);
}

}  // namespace fl
