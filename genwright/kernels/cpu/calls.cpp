// Run a list of kernel calls on a team of threads. A call begins when all work of the one before it is finished.

#include "calls.h"
#include "vectors.h"

#include <climits>
#include <sched.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

extern "C" int omp_get_num_threads();

namespace {

struct Call {                                      // `Call` of calls.py
  int64_t (*part)(void* arguments, int threads);  // takes work until none is left; returns how many units it finished
  Progress* arguments;                             // which begin with it
  int64_t units;                                   // of work
};

struct Team {
  const Call* calls;
  int64_t count;
  std::atomic<int32_t> finished;  // calls
  std::atomic<int32_t> sleeping;  // threads
};

constexpr int SPINS = 2000;  // about 20 microseconds, longer than most calls differ between threads

void wait(Team& team, int32_t calls) {
  int32_t now;
  for (int i = 0; (now = team.finished.load(std::memory_order_acquire)) < calls; i++) {
    if (i < SPINS) {
#ifdef __x86_64__
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("isb");  // takes about as long; `yield` does nothing on most processors
#endif
      continue;
    }
#ifdef __linux__
    team.sleeping.fetch_add(1);
    syscall(SYS_futex, &team.finished, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
    team.sleeping.fetch_sub(1);
#else
    sched_yield();
#endif
  }
}

void work(void* data) {
  Team& team = *(Team*)data;
  const int threads = omp_get_num_threads();
  for (int32_t i = 0; i < team.count; i++) {
    wait(team, i);
    const Call& call = team.calls[i];
    const int64_t units = call.part(call.arguments, threads);
    if (units == 0 || call.arguments->finished.fetch_add(units) + units < call.units) continue;
    team.finished.store(i + 1);
#ifdef __linux__
    if (team.sleeping.load()) syscall(SYS_futex, &team.finished, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
  }
}

}  // namespace

extern "C" void run_calls(const Call* calls, int64_t count, int threads) {
  for (int64_t i = 0; i < count; i++) {
    calls[i].arguments->taken.store(0);
    calls[i].arguments->finished.store(0);
  }
  Team team{calls, count, {0}, {0}};
  GOMP_parallel(work, &team, threads, 0);
}
