// Runs the tests whose names start with the argument. Without one, each group ("stream" of stream_ids_and_pool) gets a
// process of its own: most tests open a device, and a process can hold 64.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>

#include "check.h"

namespace {

int run_groups(const char* program) {
  std::set<std::string> groups;
  int failed = 0;
  for (const check::Test& test : check::tests()) {
    const std::string name = test.name;
    const std::string group = name.substr(0, name.find('_') + 1);
    if (groups.insert(group).second && std::system((std::string(program) + " " + group).c_str()) != 0) ++failed;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return run_groups(argv[0]);
  const char* prefix = argv[1];
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
