// Runs fl_opencl_probe, which lies beside this library, on a platform; see probe.h and probe_main.cpp.
#include "probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "disk.h"
#include "probe_words.h"
#include "runtime.h"

extern char** environ;

namespace ocl {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTimeLimit{60};

bool known_good(const FoundPlatform& platform) {
  if (platform.name == "Portable Computing Language") {
    const size_t at = platform.version.find("PoCL ");
    return at != std::string::npos && std::atoi(platform.version.c_str() + at + 5) >= 3;
  }
  return platform.vendor.find("Intel") != std::string::npos;
}

std::string library_of(const void* symbol) {
  Dl_info info{};
  return dladdr(const_cast<void*>(symbol), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string program_path() {
  const std::string library = library_of(reinterpret_cast<const void*>(&program_path));
  return library.substr(0, library.rfind('/') + 1) + "fl_opencl_probe";
}

std::string kept_in(const FoundPlatform& platform, const std::string& loader) {
  if (options().cache_dir.empty()) return "";
  Hasher hasher;
  for (const std::string& part : {std::string(kProbeVersion), platform.name, platform.version, platform.vendor, loader})
    hasher.add(part);
  for (const cl_device_id device : platform.devices) {
    hasher.add(text_of(device, CL_DEVICE_NAME));
    hasher.add(text_of(device, CL_DRIVER_VERSION));
  }
  return options().cache_dir + "/probe/" + hasher.value().text();
}

pid_t start(const std::string& program, std::vector<std::string> arguments, int& out) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> list;
  for (std::string& argument : arguments) list.push_back(argument.data());
  list.push_back(nullptr);
  pid_t child = -1;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, list.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  out = ends[0];
  if (error == 0) return child;
  close(ends[0]);
  return -1;
}

// What the child says until it ends. False: the time is over.
bool listen(int from, std::string& said) {
  const auto end = Clock::now() + kTimeLimit;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd waited{from, POLLIN, 0};
    const int ready = left > 0 ? poll(&waited, 1, static_cast<int>(left)) : 0;
    if (ready == 0) return false;
    if (ready < 0 && errno == EINTR) continue;
    char text[4096];
    const ssize_t got = read(from, text, sizeof(text));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    said.append(text, static_cast<size_t>(got));
  }
}

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  text = text.substr(text.rfind('\n') + 1);
  constexpr size_t kMost = 300;
  return text.substr(0, kMost);
}

// Of a process that was ended: the last line that speaks of an error, since a stack often follows; else the last line.
std::string telling_line(const std::string& text) {
  std::string told;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    for (const char* word : {"error", "Error", "ERROR", "ssert"})
      if (line.find(word) != std::string::npos) told = line;
    start = end + 1;
  }
  return told.empty() ? last_line(text) : last_line(told);
}

// What the child's end means; empty if all is well.
std::string judge(bool in_time, const std::string& said, int state) {
  const std::string line = last_line(said), told = telling_line(said), after = told.empty() ? "" : "; it said: " + told;
  if (!in_time) return "it did not finish a small test in " + std::to_string(kTimeLimit.count()) + " s" + after;
  if (line == kProbeGood) return "";
  if (line.rfind(kProbeBad, 0) == 0) return line.substr(std::strlen(kProbeBad));
  if (state >= 0 && WIFSIGNALED(state))
    return std::string("it ended the process that tried it (") + strsignal(WTERMSIG(state)) + ")" + after;
  return "it ended the process that tried it" + after;
}

std::string run(const std::string& program, const FoundPlatform& platform, const std::string& loader) {
  int from = -1;
  const pid_t child = start(program, {program, loader, platform.name, platform.version}, from);
  if (child < 0) return "";  // it cannot be tried, which says nothing against it
  std::string said;
  const bool in_time = listen(from, said);
  if (!in_time) kill(child, SIGKILL);
  close(from);
  int state = -1;
  while (waitpid(child, &state, 0) < 0) {
    if (errno == EINTR) continue;
    state = -1;  // the process ignores its children's ends
    break;
  }
  return judge(in_time, said, state);
}

}  // namespace

std::string probe(const FoundPlatform& platform) {
  const Options::Probe when = options().probe;
  if (when == Options::Probe::Never || (when == Options::Probe::Auto && known_good(platform))) return "";
  const std::string program = program_path(), loader = library_of(reinterpret_cast<const void*>(cl().GetPlatformIDs));
  if (access(program.c_str(), X_OK) != 0) return "";
  const std::string kept = kept_in(platform, loader), answer = kept.empty() ? "" : read_text(kept);
  std::string reason;
  if (answer.empty() || answer.back() != '\n') {
    reason = run(program, platform, loader);
    const std::string text = (reason.empty() ? kProbeGood : reason) + "\n";
    if (!kept.empty()) write_whole(kept, {{text.data(), text.size()}});
  } else if (answer != std::string(kProbeGood) + "\n") {
    reason = last_line(answer);
  }
  if (reason.empty()) return "";
  return "platform " + platform.name + " (" + platform.version + ") is left out: " + reason +
         (kept.empty() ? "" : ". To try it again remove " + kept) + ". Option probe=never uses it as it is";
}

}  // namespace ocl
