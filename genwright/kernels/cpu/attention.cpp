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

using F = FORMAT;                     // Float32 or Bf16: of everything that is read and written
constexpr bool NARROW = F::BYTES < Float32::BYTES;
constexpr int VECTORS = DIM / LANES;  // of a head
constexpr int HEAD = VECTORS * F::BYTES;
static_assert(DIM % LANES == 0);

struct Attention {  // `Attention` of attend.py
  const char* q;                   // [sequences * queries, heads, DIM]
  const char *k, *v;               // [pages, PAGE, kv_heads, DIM]
  const int64_t *pages, *lengths;  // [sequences, width], and tokens of each sequence, its queries' own included
  char* out;                       // as q
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
  const int64_t here = (row * a.heads + head) * HEAD;
  Vector q[VECTORS];
  for (int c = 0; c < VECTORS; c++) q[c] = F::part(a.q + here + c * F::BYTES, 0) * a.scale;

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
  for (int c = 0; c < VECTORS; c++) write(rounded(mixed[c] / sum, NARROW), a.out + here, c * LANES, LANES, NARROW);
}

void attend_some(void* data) {
  Work& work = *(Work*)data;
  const Attention& a = work.a;
  std::vector<float> scores;
  for (int64_t i; (i = work.next.fetch_add(1)) < a.sequences * a.queries * a.heads;)
    one_head(a, i / a.heads, i % a.heads, scores);
}

struct Rotation {  // `Rotation` of attend.py
  const char* qkv;                   // [tokens, heads + 2 kv_heads, DIM]
  const float *cos, *sin;            // [context, DIM / 2]
  const int64_t *positions, *slots;  // [tokens]
  char *q, *k, *v;                   // [tokens, heads, DIM], and [slots, kv_heads, DIM]
  int64_t tokens, heads, kv_heads;
};

// Products are rounded before they are added, as torch does it.
#ifdef __clang__
#pragma clang fp contract(off)
#else
__attribute__((optimize("fp-contract=off")))
#endif
void rotate_head(const char* from, const float* cos, const float* sin, char* to) {
  constexpr int HALF = DIM / 2;
  for (int c = 0; c < HALF; c += LANES) {
    const Vector x1 = read(from, c, HALF - c, NARROW), x2 = read(from, HALF + c, HALF - c, NARROW);
    const Vector cosine = read(cos, c, HALF - c, false), sine = read(sin, c, HALF - c, false);
    write(rounded(x1 * cosine - x2 * sine, NARROW), to, c, HALF - c, NARROW);
    write(rounded(x2 * cosine + x1 * sine, NARROW), to, HALF + c, HALF - c, NARROW);
  }
}

}  // namespace

// Rotates q and k, and writes k and v to their slots.
extern "C" void rotate(const Rotation* t) {
  for (int64_t token = 0; token < t->tokens; token++) {
    const char* from = t->qkv + token * (t->heads + 2 * t->kv_heads) * HEAD;
    const float *cos = t->cos + t->positions[token] * (DIM / 2), *sin = t->sin + t->positions[token] * (DIM / 2);
    const int64_t slot = t->slots[token] * t->kv_heads * HEAD;
    for (int64_t h = 0; h < t->heads; h++, from += HEAD) rotate_head(from, cos, sin, t->q + (token * t->heads + h) * HEAD);
    for (int64_t h = 0; h < t->kv_heads; h++, from += HEAD) rotate_head(from, cos, sin, t->k + slot + h * HEAD);
    memcpy(t->v + slot, from, t->kv_heads * HEAD);
  }
}

extern "C" void attend(const Attention* a, int threads) {
  Work work{*a, {0}};
  GOMP_parallel(attend_some, &work, threads, 0);
}
