// Runs the tests of this program, or those whose names contain the first argument.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

int in_child(int (*body)()) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    exit(body());  // with exit handlers: they must not hang or crash
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char** argv) {
  int count = 0;
  for (const TestCase& test : test_cases()) {
    if (argc > 1 && strstr(test.name, argv[1]) == nullptr) continue;
    printf("%s\n", test.name);
    fflush(stdout);
    test.run();
    ++count;
  }
  printf("%d tests passed\n", count);
  return count > 0 ? 0 : 1;
}
