// The tests' own little frame: TEST(name) { ... CHECK(condition, "text") ... }, run by test_main.cpp in written order.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ng.h"

struct TestCase {
  const char* name;
  void (*run)();
};
std::vector<TestCase>& test_cases();

#define TEST(name)                                                                           \
  static void test_##name();                                                                 \
  static const bool registered_##name = (test_cases().push_back({#name, test_##name}), true); \
  static void test_##name()

#define CHECK(condition, ...)                                             \
  do {                                                                    \
    if (!(condition)) {                                                   \
      fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);     \
      fprintf(stderr, __VA_ARGS__);                                       \
      fprintf(stderr, " (last error: %s)\n", ngGetLastErrorString());     \
      abort();                                                            \
    }                                                                     \
  } while (0)

#define EXPECT(expression, wanted)                                                                   \
  do {                                                                                               \
    const ngResult expect_result = (expression);                                                     \
    CHECK(expect_result == (wanted), "%s instead of %s", ngErrorName(expect_result), ngErrorName(wanted)); \
  } while (0)
#define OK(expression) EXPECT(expression, NG_SUCCESS)

// A dense one-dimensional float operand.
struct Vector {
  int64_t size, stride = 1;
  ngTensor tensor;
  Vector(void* data, int64_t n) : size(n), tensor{} {
    tensor.data = data;
    tensor.sizes = &size;
    tensor.strides = &stride;
    tensor.ndim = 1;
    tensor.type = NG_FLOAT32;
  }
};

inline ngOperator find_operator(const char* name) {
  ngOperator op = nullptr;
  OK(ngOperatorFind(0, name, NG_FLOAT32, NG_FLOAT32, &op));
  return op;
}

inline void* allocate(int32_t device, uint64_t bytes) {
  void* address = nullptr;
  OK(ngMalloc(device, bytes, &address));
  return address;
}

inline ngStream create_stream(int32_t device = 0) {
  ngStream stream = nullptr;
  OK(ngStreamCreate(device, 0, &stream));
  return stream;
}

inline ngEvent create_event(int32_t timing = 0, int32_t device = 0) {
  ngEvent event = nullptr;
  OK(ngEventCreate(device, timing, &event));
  return event;
}

inline ngScalar integer(int64_t value) {
  ngScalar scalar{};
  scalar.kind = 1;
  scalar.v.i = value;
  return scalar;
}

// Keeps the stream busy for this long.
inline void sleep_on(ngStream stream, int64_t microseconds) {
  const ngScalar attr = integer(microseconds);
  OK(ngOperatorLaunch(find_operator("test_sleep"), stream, nullptr, 0, nullptr, 0, &attr, 1));
}

// Runs body in a forked process; returns its exit status, or -1 if it crashed or did not end in ten seconds.
int in_child(int (*body)());
