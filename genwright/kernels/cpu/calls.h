// How the threads of a team share the work of a kernel call.

#pragma once

#include <atomic>
#include <cstdint>

namespace {

// The first member of a call's arguments. A call has a number of units of work, which threads take until none is left. A
// thread that has taken nothing need not be waited for, so one that another process has displaced does not hold up the
// others.
struct Progress {
  std::atomic<int64_t> taken, finished;  // units

  // Take up to `count` of `total` units; returns the first of them, or -1 if none is left.
  int64_t take(int64_t count, int64_t total) {
    const int64_t first = taken.fetch_add(count, std::memory_order_relaxed);
    return first < total ? first : -1;
  }
};

}  // namespace
