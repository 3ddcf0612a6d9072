// Memory that was freed while other streams may still use it: a queue per stream of events and what waits for them.
// The queues are apart so that one busy stream does not hold up memory that another one is done with.
#pragma once
#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include "internal.h"
#include "race.h"
#include "stream_pool.h"

namespace fl {

// One point in a stream's work. Where the adapter has no events, it has passed when the stream is seen idle.
class Fence {
 public:
  static Fence put(Stream& stream) noexcept;
  // True also if the work failed: `failure` then keeps the first error.
  bool passed(Stream& stream, std::exception_ptr& failure) noexcept;
  void wait(Stream& stream, std::exception_ptr& failure) noexcept;

 private:
  bool try_record(Stream& stream) noexcept;
  void recycle(Stream& stream) noexcept;
  fl_event event_ = nullptr;
  bool recorded_ = false;
  RaceMark mark_;
};

// Item has `int fences`, the number of points that it still waits for. The owner's lock guards all calls.
template <class Item>
class FenceQueues {
 public:
  bool empty() const { return waiting_ == 0; }

  void push(Stream& stream, Item* item) {
    Queue& queue = queue_of(stream);
    queue.entries.push_back({Fence::put(stream), item});
    ++item->fences;
    ++waiting_;
  }

  // Calls done(item) for each whose last point has passed. The first failure of queued work is kept in `failure`.
  template <class Done>
  void poll(Done done, std::exception_ptr& failure) {
    for (Queue& queue : queues_) {
      while (!queue.entries.empty() && queue.entries.front().fence.passed(*queue.stream, failure))
        pop(queue, done);
    }
  }

  // The same, waiting for all.
  template <class Done>
  void drain(Done done, std::exception_ptr& failure) {
    for (Queue& queue : queues_) {
      while (!queue.entries.empty()) {
        queue.entries.front().fence.wait(*queue.stream, failure);
        pop(queue, done);
      }
    }
  }

 private:
  struct Entry {
    Fence fence;
    Item* item;
  };
  struct Queue {
    Stream* stream;
    std::deque<Entry> entries;
  };

  Queue& queue_of(Stream& stream) {
    for (Queue& queue : queues_) {
      if (queue.stream == &stream) return queue;
    }
    queues_.push_back({&stream, {}});
    return queues_.back();
  }

  template <class Done>
  void pop(Queue& queue, Done& done) {
    Item* item = queue.entries.front().item;
    queue.entries.pop_front();
    --waiting_;
    if (--item->fences == 0) done(item);
  }

  std::vector<Queue> queues_;
  size_t waiting_ = 0;
};

}  // namespace fl
