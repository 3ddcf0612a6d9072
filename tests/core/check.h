// A test is TEST(name) { CHECK(...); }. main() of check_main.cpp runs those whose name starts with its argument.
#pragma once
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
inline bool add(const char* name, void (*run)()) {
  tests().push_back({name, run});
  return true;
}
inline void fail(const char* file, int line, const std::string& text) {
  ++failures();
  fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
}
template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  fail(file, line, out.str());
}

}  // namespace check

#define TEST(name)                                                 \
  static void test_##name();                                       \
  static const bool added_##name = check::add(#name, test_##name); \
  static void test_##name()
#define CHECK(...)                                                     \
  do {                                                                 \
    if (!(__VA_ARGS__)) check::fail(__FILE__, __LINE__, #__VA_ARGS__); \
  } while (0)
#define CHECK_EQ(a, b) check::equal(a, b, #a " == " #b, __FILE__, __LINE__)
// The expression raises fl::Error with this status and a text that contains `words`.
#define CHECK_RAISES(expression, code, words)                                                                        \
  do {                                                                                                               \
    bool raised = false;                                                                                             \
    try {                                                                                                            \
      (void)(expression);                                                                                            \
    } catch (const fl::Error& error) {                                                                               \
      raised = true;                                                                                                 \
      CHECK_EQ(fl::status_name(error.status), fl::status_name(code));                                                \
      if (std::string(error.what()).find(words) == std::string::npos) {                                              \
        check::fail(__FILE__, __LINE__, std::string("\"") + error.what() + "\" does not contain \"" + words + "\""); \
      }                                                                                                              \
    }                                                                                                                \
    if (!raised) check::fail(__FILE__, __LINE__, #expression " did not raise");                                      \
  } while (0)
