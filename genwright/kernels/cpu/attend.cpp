// Attention of a few queries per sequence over a paged cache, read where it lies.
//
// A head of a query is one piece of work: scores of all keys that it may see, their softmax, and the sum of values, in
// float32. So its bits depend on its own sequence alone, and not on how many others there are.

#include "vectors.h"

#include <atomic>
#include <cmath>
#include <vector>

extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);

namespace {

using F = FORMAT;                        // Float32 or Bf16
constexpr int VECTORS = DIM / LANES;     // of a head
constexpr int HEAD = VECTORS * F::BYTES;
static_assert(DIM % LANES == 0);

struct Attention {  // `Attention` of attend.py
  const float* q;                  // [sequences * queries, heads, DIM]
  const char *k, *v;               // [pages, PAGE, kv_heads, DIM]
  const int64_t *pages, *lengths;  // [sequences, width], and tokens of each sequence, its queries' own included
  float* out;                      // as q
  int64_t sequences, queries, heads, kv_heads, width, window;  // window: 0 for none
  float scale;
};

struct Work {
  const Attention& a;
  std::atomic<int64_t> next;  // the first head that no thread has taken
};

void one_head(const Attention& a, int64_t row, int64_t head, std::vector<float>& scores) {
  const int64_t sequence = row / a.queries;
  const int64_t end = a.lengths[sequence] - a.queries + 1 + row % a.queries;
  const int64_t first = a.window ? std::max<int64_t>(end - a.window, 0) : 0;
  const int64_t* pages = a.pages + sequence * a.width;
  const int64_t kv_head = head / (a.heads / a.kv_heads);
  const auto offset = [&](int64_t i) { return ((pages[i / PAGE] * PAGE + i % PAGE) * a.kv_heads + kv_head) * HEAD; };
  Vector q[VECTORS];
  memcpy(q, a.q + (row * a.heads + head) * DIM, sizeof q);
  for (Vector& v : q) v *= a.scale;

  const int64_t padded = (end - first + LANES - 1) / LANES * LANES;
  scores.assign(padded, -INFINITY);
  for (int64_t i = first; i < end; i += 4) {
    Vector sums[4] = {};
    for (int n = 0; n < 4; n++) {
      const char* key = a.k + offset(std::min(i + n, end - 1));
      for (int c = 0; c < VECTORS; c++) sums[n] += F::part(key + c * F::BYTES, 0) * q[c];
    }
    const Vector four = sum4(sums);
    for (int n = 0; n < 4 && i + n < end; n++) scores[i + n - first] = four[n];
  }

  float most = -INFINITY;
  for (int64_t i = 0; i < end - first; i++) most = std::max(most, scores[i]);  // a NaN reaches the sum by itself
  Vector total = {};
  for (int64_t i = 0; i < padded; i += LANES) {
    const Vector p = exponential(load<Vector>(&scores[i]) - most);
    memcpy(&scores[i], &p, sizeof p);
    total += p;
  }
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += total[i];

  Vector mixed[VECTORS] = {};
  for (int64_t i = first; i < end; i++) {
    const char* value = a.v + offset(i);
    for (int c = 0; c < VECTORS; c++) mixed[c] += F::part(value + c * F::BYTES, 0) * scores[i - first];
  }
  for (Vector& v : mixed) v /= sum;
  memcpy(a.out + (row * a.heads + head) * DIM, mixed, sizeof mixed);
}

void attend_some(void* data) {
  Work& work = *(Work*)data;
  const Attention& a = work.a;
  std::vector<float> scores;
  for (int64_t i; (i = work.next.fetch_add(1)) < a.sequences * a.queries * a.heads;)
    one_head(a, i / a.heads, i % a.heads, scores);
}

}  // namespace

extern "C" void attend(const Attention* a, int threads) {
  Work work{*a, {0}};
  GOMP_parallel(attend_some, &work, threads, 0);
}
