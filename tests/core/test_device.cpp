// The device list, discovery, kernels by profile and switch, errors, counters, fork.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "counters.h"
#include "fixture.h"

using namespace fixture;
using namespace fl;

// Runs first of all: nothing is open yet.
TEST(a_discovery_opens_on_first_use) {
  name_uniops();
  CHECK(!devices_opened());
  CHECK_EQ(device_count(), 0);  // no Discover yet: stays closed
  CHECK(!devices_opened());
  static std::atomic<int> runs{0};
  static std::recursive_mutex gil;  // Discover takes Python's GIL, and callers may hold it
  AdapterSpec all = spec();
  all.max_devices = -1;
  AdapterSpec broken = spec();
  broken.path = "/nowhere/libchip.so";
  AdapterSpec immutable = spec("immutable");
  AdapterSpec none = spec("plain");
  none.max_devices = 0;
  set_discover([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::lock_guard<std::recursive_mutex> lock(gil);
    ++runs;
    CHECK(device_count() == 0 || devices_opened());  // Discover itself may ask
    return std::vector<AdapterSpec>{all, broken, immutable, none};
  });
  std::thread threads[4];
  for (int t = 0; t < 4; ++t) {
    threads[t] = std::thread([t] {
      std::unique_lock<std::recursive_mutex> lock(gil, std::defer_lock);
      if (t % 2 == 0) lock.lock();
      CHECK_EQ(device_count(), 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int after = runs;
  CHECK(after >= 1);
  CHECK_EQ(device_count(), 3);
  CHECK_EQ(runs.load(), after);
  CHECK(devices_opened());
  const char* const order[] = {"test-1", "test-2", "test-10"};
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(device(i).uuid, order[i]);
    CHECK_EQ(device(i).ordinal, 2 - i);
    CHECK_EQ(device(i).index, i);
    CHECK_EQ(device(i).name, "Test chip");
    CHECK_EQ(device(i).chip, all.device_name);
  }
  const std::vector<AdapterFailure> failures = adapter_failures();
  CHECK_EQ(failures.size(), 2u);
  CHECK_EQ(failures[0].path, "/nowhere/libchip.so");
  CHECK(failures[0].reason.find("there is no such file") != std::string::npos);
  CHECK(failures[1].reason.find("immutable-buffer chips are not supported by this version") != std::string::npos);
  CHECK_EQ(add_adapter(all).size(), 3u);  // the same again: no duplicates
  CHECK_EQ(device_count(), 3);
}

TEST(device_unknown_index) {
  const int count = device_count();
  CHECK_RAISES(device(-1), FL_STATUS_NOT_FOUND, "fl:-1 does not exist: there");
  CHECK_RAISES(device(count), FL_STATUS_NOT_FOUND, "fl:" + std::to_string(count) + " does not exist");
  CHECK_RAISES(set_current_device(63), FL_STATUS_NOT_FOUND, "fl:63 does not exist");
}

TEST(device_current_is_per_thread) {
  Device& one = open();
  const int before = exchange_device(one.index);
  CHECK_EQ(current_device(), one.index);
  std::thread([] { CHECK_EQ(current_device(), 0); }).join();
  CHECK_EQ(exchange_device(before), one.index);
}

TEST(device_add_adapter_raises_the_reason) {
  AdapterSpec wrong = spec();
  wrong.path = adapter_path("immutable");
  CHECK_RAISES(add_adapter(wrong), FL_STATUS_UNIMPLEMENTED, "does not declare FL_CAP_IN_PLACE");
  AdapterSpec fraction = spec();
  fraction.memory_fraction = 1.5;
  CHECK_RAISES(add_adapter(fraction), FL_STATUS_INVALID_ARGUMENT, "memory_fraction is 1.5");
  CHECK_RAISES(open_adapter(""), FL_STATUS_NOT_FOUND, "there is no such file");
}

TEST(device_same_adapter_through_a_link) {
  const std::string link = "/tmp/fl_core_test_" + std::to_string(getpid()) + ".so";
  CHECK_EQ(symlink(adapter_path().c_str(), link.c_str()), 0);
  CHECK_EQ(open_adapter(link), open_adapter(adapter_path()));
  unlink(link.c_str());
}

// ---------------------------------------------------------------- choice and options

TEST(choice_by_match) {
  AdapterSpec wanted = spec();
  wanted.max_devices = -1;
  wanted.match = {{"uuid", "test-1*"}, {"arch", "HOST"}};
  const std::vector<int> indices = add_adapter(wanted);
  CHECK_EQ(indices.size(), 2u);
  CHECK_EQ(device(indices[0]).uuid, "test-1");
  CHECK_EQ(device(indices[1]).uuid, "test-10");
  AdapterSpec rest = spec();
  rest.max_devices = -1;
  CHECK_EQ(add_adapter(rest).size(), 1u);  // what another chip chose is not listed twice
  AdapterSpec taken = spec();
  taken.match = {{"name", "Test*"}};
  CHECK_RAISES(add_adapter(taken), FL_STATUS_NOT_FOUND,
               "is left for chip " + taken.device_name + ": all that it could have are devices of ");
}

TEST(choice_that_fits_nothing) {
  AdapterSpec none = spec("opaque");
  none.match = {{"arch", "gpu-*"}};
  CHECK_RAISES(add_adapter(none), FL_STATUS_NOT_FOUND,
               "is chip " + none.device_name + ": `match` wants arch gpu-*, and there are: 'Test chip' (arch host, uuid "
               "test-1); 'Test chip' (arch host, uuid test-2)");
  none.match = {{"color", "red"}};
  CHECK_RAISES(add_adapter(none), FL_STATUS_INVALID_ARGUMENT, "names 'color', expected name, arch or uuid");
}

TEST(options_of_a_library) {
  AdapterSpec first = spec();
  first.cache_dir = "/tmp/cache";
  first.cache_max_mb = 5;  // unknown to the adapter, and the host's own: no error
  first.options = {{"mode", "slow"}};
  open(first);
  CHECK_EQ(std::string(steer().state().cache_dir), "/tmp/cache/test");
  const int64_t calls = steer().state().configures;
  AdapterSpec same = spec();
  same.cache_dir = "/tmp/cache";
  same.options = {{"mode", "slow"}};
  open(same);
  CHECK_EQ(steer().state().configures, calls);  // nothing new to tell
  AdapterSpec other = spec();
  other.profile_path = "/p/other.json";
  other.options = {{"mode", "fast"}};
  CHECK_RAISES(add_adapter(other), FL_STATUS_FAILED_PRECONDITION,
               "option mode=fast of profile /p/other.json is refused by adapter 'test': Failed precondition "
               "(TEST_OPEN): too late. Its devices are open already with mode=slow, for chip " + first.device_name);
  other.options = {{"mode", "odd"}};
  CHECK_RAISES(add_adapter(other), FL_STATUS_INVALID_ARGUMENT, "option mode=odd of profile /p/other.json");
  other.options = {{"color", "red"}};
  CHECK_RAISES(add_adapter(other), FL_STATUS_INVALID_ARGUMENT,
               "option color of profile /p/other.json is refused by adapter 'test': it has no option of this name");
  AdapterSpec without = spec("plain");
  without.cache_dir = "/tmp/cache";
  open(without);
  without = spec("plain");
  without.options = {{"mode", "slow"}};
  CHECK_RAISES(add_adapter(without), FL_STATUS_INVALID_ARGUMENT, "adapter 'test_plain': it has no options at all");
}

TEST(device_error_texts) {
  Device& one = open();
  CHECK_EQ(status_name(FL_STATUS_INVALID_ARGUMENT), "INVALID_ARGUMENT");
  CHECK_EQ(status_name(4099), "VENDOR(4099)");
  CHECK_EQ(status_name(-7), "STATUS(-7)");
  steer().with([](test_control& control) { control.sync_status = FL_STATUS_OUT_OF_RANGE; });
  CHECK_RAISES(default_stream(one.index).synchronize(), FL_STATUS_OUT_OF_RANGE,
               "synchronize of stream 0 failed on fl:" + std::to_string(one.index) + " (" + one.chip +
                   "): Out of range (TEST_ASYNC): queued work failed");
}

TEST(device_installed_raiser) {
  struct Foreign {
    fl_status status;
  };
  set_raiser([](fl_status status, const std::string&) { throw Foreign{status}; });
  fl_status got = FL_STATUS_OK;
  try {
    device(-1);
  } catch (const Foreign& foreign) {
    got = foreign.status;
  }
  fl_status memory = FL_STATUS_OK;
  try {
    Device& one = open();
    one.allocator->allocate(uint64_t{1} << 50, default_stream(one.index));
  } catch (const Foreign& foreign) {
    memory = foreign.status;
  }
  set_raiser(nullptr);
  CHECK_EQ(got, static_cast<fl_status>(FL_STATUS_NOT_FOUND));
  CHECK_EQ(memory, static_cast<fl_status>(FL_STATUS_OUT_OF_MEMORY));
}

// ---------------------------------------------------------------- kernels

TEST(kernel_is_asked_once) {
  Device& one = open();
  const int64_t before = steer().state().kernel_finds;
  const Kernel* add = one.kernel(kAdd, DType::Float16, DType::Float16);
  CHECK(add != nullptr && add->uniop == kAdd && add->k.max_ndim == 4);
  CHECK_EQ(reinterpret_cast<uintptr_t>(add->k.data), FL_FLOAT * 1000u + 16u);
  CHECK_EQ(one.kernel(kAdd, DType::Float16, DType::Float16), add);
  CHECK(one.kernel(kMatmul, DType::Float16, DType::Float16) == nullptr);
  CHECK(one.kernel(kMatmul, DType::Float16, DType::Float16) == nullptr);
  CHECK_EQ(steer().state().kernel_finds - before, 2);
  one.reset_kernels();
  CHECK_EQ(one.kernel(kAdd, DType::Float16, DType::Float16), add);
  CHECK_EQ(steer().state().kernel_finds - before, 2);
  CHECK(one.kernel(kAdd, DType::Unsupported, DType::Float16) == nullptr);
}

TEST(kernel_failure_raises) {
  Device& one = open();
  steer().with([](test_control& control) { control.kernel_status = FL_STATUS_INTERNAL; });
  CHECK_RAISES(one.kernel(kAdd, DType::Float32, DType::Float32), FL_STATUS_INTERNAL,
               "kernel_find(add, float32, float32) failed on "
               "fl:" +
                   std::to_string(one.index));
  steer().with([](test_control& control) { control.kernel_status = 0; });
  CHECK(one.kernel(kAdd, DType::Float32, DType::Float32) != nullptr);
}

TEST(kernel_profile_policies) {
  AdapterSpec profile = spec();
  profile.dtypes = {"float32", "float16"};
  profile.native = {{"eq", {"float16"}}, {"matmul", {}}};
  Device& listed = open(profile);
  CHECK(listed.kernel(kAdd, DType::Float32, DType::Float32) != nullptr);
  CHECK(listed.kernel(kAdd, DType::Float64, DType::Float64) == nullptr);
  CHECK(listed.kernel(kAdd, DType::Float32, DType::Float64) == nullptr);
  CHECK(listed.kernel(kAdd, DType::Float32, DType::Int64) != nullptr);  // an index
  CHECK(listed.kernel(kEq, DType::Float16, DType::Bool) != nullptr);
  CHECK(listed.kernel(kEq, DType::Float32, DType::Bool) == nullptr);
  profile = spec();
  profile.only_listed = true;
  profile.native = {{"eq", {}}};
  Device& only = open(profile);
  CHECK(only.kernel(kEq, DType::Float64, DType::Bool) != nullptr);
  CHECK(only.kernel(kAdd, DType::Float32, DType::Float32) == nullptr);
  profile = spec();
  profile.native = {{"add", {}}};
  profile.not_native = {"add"};
  CHECK(open(profile).kernel(kAdd, DType::Float32, DType::Float32) == nullptr);
}

TEST(kernel_switches) {
  Device& one = open();
  Device& two = open();
  const auto add = [](Device& device) { return device.kernel(kAdd, DType::Float32, DType::Float32) != nullptr; };
  CHECK(add(one) && add(two));
  set_uniop_enabled(one.index, "add", false);
  CHECK(!add(one) && add(two));
  set_uniop_enabled(-1, "add", false);
  CHECK(!add(one) && !add(two));
  set_uniop_enabled(-1, "add", true);
  CHECK(add(one) && add(two));
  set_native_enabled(false);
  CHECK(!add(one) && !add(two));
  set_native_enabled(true);
  CHECK(add(one) && add(two));
  CHECK_RAISES(set_uniop_enabled(0, "nonsense", true), FL_STATUS_INVALID_ARGUMENT, "'nonsense' is not a UniOp");
}

TEST(kernel_types) {
  CHECK_EQ(std::string(dtype_name(DType::BFloat16)), "bfloat16");
  CHECK_EQ(int{to_abi(DType::BFloat16).code}, int{FL_BFLOAT});
  CHECK_EQ(int{to_abi(DType::Complex128).bits}, 128);
  CHECK_EQ(int{to_abi(DType::UInt64).code}, int{FL_UINT});
  CHECK_EQ(int{to_abi(DType::Bool).bits}, 8);
}

// ---------------------------------------------------------------- counters

TEST(counters_count_by_device_overload_and_tier) {
  const int add = overload_id("aten::add.Tensor");
  CHECK_EQ(overload_id("aten::add.Tensor"), add);
  CHECK(overload_id("aten::mul.Tensor") != add);
  CHECK_EQ(overload_name(add), "aten::add.Tensor");
  CHECK_EQ(overload_name(4000), "");
  std::thread threads[4];
  for (std::thread& thread : threads) {
    thread = std::thread([add] {
      for (int i = 0; i < 1000; ++i) count(5, add, Tier::Cpu);
      count_bytes(5, Tier::Cpu, 10);
    });
  }
  for (std::thread& thread : threads) thread.join();
  count(1, add, Tier::Native);
  const std::vector<Count> all = counts();
  CHECK_EQ(all.size(), 2u);
  CHECK(all[0].device == 1 && all[0].tier == Tier::Native && all[0].calls == 1);
  CHECK(all[1].device == 5 && all[1].tier == Tier::Cpu && all[1].calls == 4000 &&
        all[1].overload == "aten::add.Tensor");
  CHECK_EQ(count_bytes_by_tier().at(5).at(static_cast<int>(Tier::Cpu)), 40u);
  reset_counts();
  CHECK(counts().empty());
  CHECK_EQ(count_bytes_by_tier().at(5).at(3), 0u);
}

TEST(counters_more_names_than_fit) {
  for (int i = 0; i < kMaxOverloads + 10; ++i) overload_id(("aten::op" + std::to_string(i)).c_str());
  CHECK_EQ(overload_id("aten::one_more"), kMaxOverloads - 1);
  count(0, overload_id("aten::one_more"), Tier::Native);
  CHECK_EQ(counts().back().overload, "(more overloads than can be counted)");
  reset_counts();
}

// ---------------------------------------------------------------- fork

TEST(fork_child_raises) {
  Device& one = open();
  Block* block = one.allocator->allocate(64, default_stream(one.index));
  const pid_t child = fork();
  if (child == 0) {
    const int before = check::failures();
    CHECK(in_bad_fork());
    CHECK_RAISES(device(0), FL_STATUS_FAILED_PRECONDITION, "'spawn'");
    CHECK_RAISES(one.allocator->allocate(64, default_stream(one.index)), FL_STATUS_FAILED_PRECONDITION, "'spawn'");
    CHECK_RAISES(add_adapter(spec()), FL_STATUS_FAILED_PRECONDITION, "'spawn'");
    CHECK_RAISES(synchronize(0), FL_STATUS_FAILED_PRECONDITION, "'spawn'");
    one.allocator->free(block);  // does nothing
    _exit(check::failures() - before);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(!in_bad_fork());
  one.allocator->free(block);
}
