// Attention of a few queries per sequence over a paged cache, which is read in place.
//
// The unit of work is one head of one query: the scores of all visible keys, their softmax and the sum of values, in
// float32. Its bits therefore depend only on its own sequence, not on the batch.

#include "calls.h"
#include "vectors.h"

#include <cmath>
#include <vector>

namespace {

using F = FORMAT;                     // Float32 or Bf16, the type of all inputs and outputs
constexpr bool BF16 = F::BYTES < Float32::BYTES;
constexpr int VECTORS = DIM / LANES;  // per head
constexpr int HEAD = VECTORS * F::BYTES;
static_assert(DIM % LANES == 0);

struct Attention {  // `Attention` of attention.py
  Progress progress;               // units of work: heads of queries
  const char* q;                   // [sequences * queries, heads, DIM]
  const char *k, *v;               // [pages, PAGE, kv_heads, DIM]
  const int64_t *pages, *lengths;  // [sequences, width] and [sequences]; a length includes the queries
  char* out;                       // like q
  int64_t sequences, queries, heads, kv_heads, width, window;  // window: 0 for none
  float scale;
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

  float maximum = -INFINITY;
  for (int64_t i = 0; i < end - first; i++) maximum = std::max(maximum, scores[i]);  // skips NaN, which still reaches the sum
  Vector total = {};
  for (int64_t i = 0; i < padded; i += LANES) {
    const Vector p = exponential(load<Vector>(&scores[i]) - maximum);
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
  for (int c = 0; c < VECTORS; c++) write(rounded(mixed[c] / sum, BF16), a.out + here, c * LANES, LANES, BF16);
}

struct Rotation {  // `Rotation` of attention.py
  Progress progress;                 // units of work: tokens
  const char* qkv;                   // [tokens, heads + 2 kv_heads, DIM]
  const float *cos, *sin;            // [context, DIM / 2]
  const int64_t *positions, *slots;  // [tokens]
  char *q, *k, *v;                   // [tokens, heads, DIM], and [slots, kv_heads, DIM]
  int64_t tokens, heads, kv_heads;
};

// A product that is rounded before it is added, as in torch; compilers may fuse what they see.
Vector rounded_product(Vector a, Vector b) {
  Vector product = a * b;
  asm("" : "+m"(product));
  return product;
}

void rotate_head(const char* from, const float* cos, const float* sin, char* to) {
  constexpr int HALF = DIM / 2;
  for (int c = 0; c < HALF; c += LANES) {
    const Vector x1 = read(from, c, HALF - c, BF16), x2 = read(from, HALF + c, HALF - c, BF16);
    const Vector cosine = read(cos, c, HALF - c, false), sine = read(sin, c, HALF - c, false);
    write(rounded(rounded_product(x1, cosine) - rounded_product(x2, sine), BF16), to, c, HALF - c, BF16);
    write(rounded(rounded_product(x2, cosine) + rounded_product(x1, sine), BF16), to, HALF + c, HALF - c, BF16);
  }
}

}  // namespace

// One thread's part of applying RoPE to q and k, and writing k and v to their slots.
extern "C" int64_t rotate_part(Rotation* t, int) {
  int64_t finished = 0;
  for (int64_t token; (token = t->progress.take(1, t->tokens)) >= 0; finished++) {
    const char* from = t->qkv + token * (t->heads + 2 * t->kv_heads) * HEAD;
    const float *cos = t->cos + t->positions[token] * (DIM / 2), *sin = t->sin + t->positions[token] * (DIM / 2);
    const int64_t slot = t->slots[token] * t->kv_heads * HEAD;
    for (int64_t h = 0; h < t->heads; h++, from += HEAD) rotate_head(from, cos, sin, t->q + (token * t->heads + h) * HEAD);
    for (int64_t h = 0; h < t->kv_heads; h++, from += HEAD) rotate_head(from, cos, sin, t->k + slot + h * HEAD);
    memcpy(t->v + slot, from, t->kv_heads * HEAD);
  }
  return finished;
}

// One thread's part of the attention.
extern "C" int64_t attend_part(Attention* a, int) {
  thread_local std::vector<float> scores;
  int64_t finished = 0;
  for (int64_t i; (i = a->progress.take(1, a->sequences * a->queries * a->heads)) >= 0; finished++)
    one_head(*a, i / a->heads, i % a->heads, scores);
  return finished;
}
