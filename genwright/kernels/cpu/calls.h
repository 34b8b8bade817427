// How the threads of a team share the work of a kernel call.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace {

struct Range {
  int64_t first, end;
};

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

  // Take an equal part of half of what is left, at least `least` and a multiple of it: large parts, which are read from
  // memory fastest, and then small ones, with which all threads finish at the same time.
  Range take_part(int threads, int64_t least, int64_t total) {
    int64_t first = taken.load(std::memory_order_relaxed), count;
    do {
      if (first >= total) return {-1, -1};
      count = std::max<int64_t>((total - first) / (2 * threads) / least, 1) * least;
    } while (!taken.compare_exchange_weak(first, first + count, std::memory_order_relaxed));
    return {first, std::min(first + count, total)};
  }
};

}  // namespace
