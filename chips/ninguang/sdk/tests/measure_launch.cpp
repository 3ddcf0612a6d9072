// What a launch costs: the caller's time alone, the time per launch when the stream is kept busy, and the round trip
// of a launch with a synchronize. Not a test; prints nanoseconds.
#include <algorithm>
#include <chrono>

#include "check.h"

std::vector<TestCase>& test_cases() {
  static std::vector<TestCase> cases;
  return cases;
}

namespace {

using Clock = std::chrono::steady_clock;

double nanoseconds(Clock::time_point from, Clock::time_point to, int count) {
  return std::chrono::duration<double, std::nano>(to - from).count() / count;
}

}  // namespace

int main() {
  ngStream stream = create_stream();
  const ngOperator add = find_operator("test_add");
  char* memory = static_cast<char*>(allocate(0, 4096));
  OK(ngMemsetAsync(stream, memory, 0, 4096));
  Vector a(memory, 8), b(memory + 512, 8), out(memory + 1024, 8);
  const ngTensor inputs[] = {a.tensor, b.tensor};
  const ngScalar attr = integer(1);
  const auto launch = [&] { OK(ngOperatorLaunch(add, stream, inputs, 2, &out.tensor, 1, &attr, 1)); };

  std::vector<double> enqueue, pipelined, round_trip, record;
  for (int round = 0; round < 30; ++round) {
    OK(ngStreamSynchronize(stream));
    auto start = Clock::now();
    for (int i = 0; i < 200; ++i) launch();  // less than a ring
    enqueue.push_back(nanoseconds(start, Clock::now(), 200));
    OK(ngStreamSynchronize(stream));
    start = Clock::now();
    for (int i = 0; i < 20000; ++i) launch();
    OK(ngStreamSynchronize(stream));
    pipelined.push_back(nanoseconds(start, Clock::now(), 20000));
    start = Clock::now();
    for (int i = 0; i < 200; ++i) {
      launch();
      OK(ngStreamSynchronize(stream));
    }
    round_trip.push_back(nanoseconds(start, Clock::now(), 200));
    ngEvent event = create_event();
    start = Clock::now();
    for (int i = 0; i < 200; ++i) OK(ngEventRecord(event, stream));
    record.push_back(nanoseconds(start, Clock::now(), 200));
    OK(ngEventDestroy(event));
  }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  printf("add of 8 floats: enqueue %.0f ns, pipelined %.0f ns, with synchronize %.0f ns; event record %.0f ns\n",
         median(enqueue), median(pipelined), median(round_trip), median(record));
  return 0;
}
