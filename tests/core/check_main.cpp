// Runs the tests whose names start with the argument, or all.
#include <cstring>
#include <exception>

#include "check.h"

int main(int argc, char** argv) {
  const char* prefix = argc > 1 ? argv[1] : "";
  int ran = 0;
  for (const check::Test& test : check::tests()) {
    if (strncmp(test.name, prefix, strlen(prefix)) != 0) continue;
    const int before = check::failures();
    try {
      test.run();
    } catch (const std::exception& error) {
      check::fail(test.name, 0, std::string("unexpected exception: ") + error.what());
    }
    printf("%s %s\n", check::failures() == before ? "ok  " : "FAIL", test.name);
    ++ran;
  }
  printf("%d tests, %d failures\n", ran, check::failures());
  return ran == 0 || check::failures() != 0 ? 1 : 0;
}
