// Attention over a paged cache, which is read in place, and RoPE with the cache write.
//
// The unit of work is a block of rows that share a head of keys and values; a row is one head of one query. The scores of
// all visible keys, their softmax and the sum of values are computed in float32, for a row in an order that depends only on
// its sequence, not on the block or the batch.

#include "calls.h"
#include "vectors.h"

#include <cmath>
#include <type_traits>
#include <vector>

namespace {

using F = FORMAT;                     // Float32 or Bf16, the type of all inputs and outputs
constexpr bool BF16 = F::BYTES < Float32::BYTES;
#ifdef __AVX512BF16__
constexpr bool PAIRS = BF16;          // whether pairs of bf16 are multiplied as they are
#else
constexpr bool PAIRS = false;
#endif
constexpr int VECTORS = DIM / LANES;  // per head
constexpr int HEAD = VECTORS * F::BYTES;
constexpr int WORDS = PAIRS ? DIM / 2 : DIM;  // of a head: pairs of bf16, or floats
constexpr int WORD_VECTORS = (WORDS + LANES - 1) / LANES;
constexpr int MIXED_ROWS = VECTORS <= 4 ? 4 : VECTORS <= 8 ? 2 : 1;  // at a time, so that their sums fit the registers
static_assert(DIM % LANES == 0);

struct Attention {  // `Attention` of attention.py
  Progress progress;               // units of work: blocks of rows
  const char* q;                   // [sequences * queries, heads, DIM]
  const char *k, *v;               // [pages, PAGE, kv_heads, DIM]
  const int64_t *pages, *lengths;  // [sequences, width] and [sequences]; a length includes the queries
  char* out;                       // like q
  int64_t sequences, queries, heads, kv_heads, width, window;  // window: 0 for none
  int64_t block;                   // rows of a unit
  float scale;
};

struct Block {
  const Attention& a;
  int64_t sequence, kv_head, first_row, rows;

  Block(const Attention& a, int64_t unit) : a(a) {
    const int64_t all = a.queries * a.heads / a.kv_heads, blocks = (all + a.block - 1) / a.block;
    sequence = unit / blocks / a.kv_heads, kv_head = unit / blocks % a.kv_heads;
    first_row = unit % blocks * a.block, rows = std::min(a.block, all - first_row);
  }
  int64_t query(int64_t row) const { return (first_row + row) / (a.heads / a.kv_heads); }
  int64_t end(int64_t row) const { return a.lengths[sequence] - a.queries + 1 + query(row); }  // of the visible keys
  int64_t first(int64_t row) const { return a.window ? std::max<int64_t>(end(row) - a.window, 0) : 0; }
  int64_t start() const { return first(0) / LANES * LANES; }
  int64_t key(int64_t i) const {  // or value: its place in the cache
    const int64_t page = a.pages[sequence * a.width + i / PAGE];
    return ((page * PAGE + i % PAGE) * a.kv_heads + kv_head) * HEAD;
  }
  int64_t place(int64_t row) const {  // in q and the output
    const int64_t shared = a.heads / a.kv_heads, head = kv_head * shared + (first_row + row) % shared;
    return ((sequence * a.queries + query(row)) * a.heads + head) * HEAD;
  }
};

// Vector c of a head's words; zeros after its end.
inline Words words_of(const char* head, int c) {
  if constexpr (!PAIRS) return (Words)F::part(head + c * F::BYTES, 0);
  Words words = {};
  memcpy(&words, head + c * sizeof(Words), std::min<int>(LANES, WORDS - c * LANES) * 4);
  return words;
}

template <int STEP, int... I>
inline void exchange(Words& a, Words& b, std::integer_sequence<int, I...>) {
#ifdef __clang__
  const Words first = __builtin_shufflevector(a, b, ((I & STEP) ? LANES + I - STEP : I)...);
  b = __builtin_shufflevector(a, b, ((I & STEP) ? LANES + I : I + STEP)...);
#else
  const Words first = __builtin_shuffle(a, b, Words{((I & STEP) ? LANES + I - STEP : I)...});
  b = __builtin_shuffle(a, b, Words{((I & STEP) ? LANES + I : I + STEP)...});
#endif
  a = first;
}

// Exchange rows and lanes.
template <int STEP = 1>
inline void transpose(Words* v) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++)
    if (!(i & STEP)) exchange<STEP>(v[i], v[i + STEP], Lanes());
  if constexpr (2 * STEP < LANES) transpose<2 * STEP>(v);
}

inline Vector add_products(Vector sums, Words keys, Words q) {
#ifdef __AVX512BF16__
  if constexpr (PAIRS) return (Vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)keys, (__m512bh)q);
#endif
  return multiply_add((Vector)keys, (Vector)q, sums);
}

// The scores of a row, key by key: for rows that share their keys with none or one other.
void score_row(const Block& b, const uint32_t* q, float* scores) {
  const int64_t start = b.start(), end = b.end(b.rows - 1);
  for (int64_t i = start; i < end; i += 4) {
    Vector sums[4] = {};
    for (int n = 0; n < 4; n++) {
      const char* key = b.a.k + b.key(std::min(i + n, end - 1));
      for (int c = 0; c < WORD_VECTORS; c++) sums[n] = add_products(sums[n], words_of(key, c), load<Words>(q + c * LANES));
    }
    const Vector four = sum4(sums) * b.a.scale;
    memcpy(scores + i - start, &four, 4 * sizeof(float));
  }
}

// Call `use` with the first row and the count of groups of R rows, and of the fewer that are left.
template <int R, class Use>
inline void by_rows(int64_t row, int64_t rows, Use use) {
  for (; row + R <= rows; row += R) use(row, std::integral_constant<int, R>());
  if constexpr (R > 1) by_rows<R - 1>(row, rows, use);
}

// The scores of LANES keys for R rows: q [rows, WORD_VECTORS * LANES], keys [WORD_VECTORS * LANES].
template <int R>
inline void score(const uint32_t* q, const Words* keys, float scale, float* scores, int64_t stride) {
  Vector sums[R][4] = {};  // four for each row, because an addition waits for the one before it
  for (int w = 0; w < WORDS; w += 4)
#pragma GCC unroll 16
    for (int i = 0; i < 4 * R; i++) {
      Vector& sum = sums[i % R][i / R];
      sum = add_products(sum, keys[w + i / R], Words{} + q[i % R * WORD_VECTORS * LANES + w + i / R]);
    }
  for (int r = 0; r < R; r++) {
    const Vector scaled = ((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3])) * scale;
    memcpy(scores + r * stride, &scaled, sizeof scaled);
  }
}

void score_all(const Block& b, const uint32_t* q, float* scores, int64_t stride) {
  const int64_t start = b.start(), end = b.end(b.rows - 1);
  for (int64_t i = start; i < end; i += LANES, scores += LANES) {
    Words keys[WORD_VECTORS * LANES];
    for (int c = 0; c < WORD_VECTORS; c++) {
      for (int n = 0; n < LANES; n++) keys[c * LANES + n] = words_of(b.a.k + b.key(std::min(i + n, end - 1)), c);
      transpose(keys + c * LANES);
    }
    by_rows<4>(0, b.rows, [&](int64_t row, auto count) {
      score<count>(q + row * WORD_VECTORS * LANES, keys, b.a.scale, scores + row * stride, stride);
    });
  }
}

// Replace a row's scores from `start` on by e^(score - maximum), 0 for keys that it does not see, and return their sum.
float exponentials(float* scores, int64_t start, int64_t first, int64_t end, int64_t last) {
  Vector maximum = Vector{} - INFINITY, total = {};
  Ints lane;
  for (int i = 0; i < LANES; i++) lane[i] = i;
  for (int64_t i = start; i < last; i += LANES) {
    const Ints key = lane + int32_t(i);
    const Vector v = load<Vector>(scores + i - start);
    const Vector seen = (key >= int32_t(first) & key < int32_t(end)) ? v : Vector{} - INFINITY;
    maximum = larger(seen, maximum);  // skips NaN, which still reaches the sum
    memcpy(scores + i - start, &seen, sizeof seen);
  }
  const float most = largest_lane(maximum);
  for (int64_t i = start; i < last; i += LANES) {
    const Vector v = load<Vector>(scores + i - start), e = exponential(v - most);
    const Vector p = v == Vector{} - INFINITY ? Vector{} : e;
    memcpy(scores + i - start, &p, sizeof p);
    total += p;
  }
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += total[i];
  return sum;
}

// Write the sums of values for R rows from `row` on.
template <int R>
inline void mix(const Block& b, int64_t row, const float* scores, int64_t stride, const float* totals) {
  const int64_t start = b.start();
  Vector mixed[R][VECTORS] = {};
  for (int64_t i = b.first(row); i < b.end(row + R - 1); i++) {
    const char* value = b.a.v + b.key(i);
#pragma GCC unroll 16
    for (int c = 0; c < VECTORS; c++) {
      const Vector v = F::part(value + c * F::BYTES, 0);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) mixed[r][c] = multiply_add(v, all_lanes(scores[r * stride + i - start]), mixed[r][c]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < VECTORS; c++)
      write(rounded(mixed[r][c] / totals[r], BF16), b.a.out + b.place(row + r), c * LANES, LANES, BF16);
}

void attend(const Block& b) {
  thread_local std::vector<uint32_t> q;
  thread_local std::vector<float> scores, totals;
  const int64_t start = b.start(), end = b.end(b.rows - 1), stride = (end - start + LANES - 1) / LANES * LANES;
  q.resize(b.rows * WORD_VECTORS * LANES);
  scores.resize(std::max<size_t>(scores.size(), b.rows * stride));
  totals.resize(b.rows);
  for (int64_t row = 0; row < b.rows; row++)
    for (int c = 0; c < WORD_VECTORS; c++) {
      const Words words = words_of(b.a.q + b.place(row), c);
      memcpy(q.data() + (row * WORD_VECTORS + c) * LANES, &words, sizeof words);
    }
  if (b.a.queries * b.a.heads > 2 * b.a.kv_heads)
    score_all(b, q.data(), scores.data(), stride);
  else
    for (int64_t row = 0; row < b.rows; row++)
      score_row(b, q.data() + row * WORD_VECTORS * LANES, scores.data() + row * stride);
  for (int64_t row = 0; row < b.rows; row++)
    totals[row] = exponentials(scores.data() + row * stride, start, b.first(row), b.end(row), end);
  by_rows<MIXED_ROWS>(0, b.rows, [&](int64_t row, auto count) {
    mix<count>(b, row, scores.data() + row * stride, stride, totals.data() + row);
  });
}

struct Rotation {  // `Rotation` of attention.py
  Progress progress;                 // units of work: tokens
  const char* qkv;                   // [tokens, heads + 2 kv_heads, DIM]
  const float *cos, *sin;            // [context, DIM / 2]
  const int64_t *positions, *slots;  // [tokens]
  char *q, *k, *v;                   // [tokens, heads, DIM], and [slots, kv_heads, DIM]
  int64_t tokens, heads, kv_heads;
};

void rotate_head(const char* from, const float* cos, const float* sin, char* to) {
  constexpr int HALF = DIM / 2;
  for (int c = 0; c < HALF; c += LANES) {
    const Vector x1 = read(from, c, HALF - c, BF16), x2 = read(from, HALF + c, HALF - c, BF16);
    const Vector cosine = read(cos, c, HALF - c, false), sine = read(sin, c, HALF - c, false);
    // Products are rounded before they are added, as in torch.
    write(rounded(x1 * cosine - x2 * sine, BF16), to, c, HALF - c, BF16);
    write(rounded(x2 * cosine + x1 * sine, BF16), to, HALF + c, HALF - c, BF16);
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
  const int64_t rows = a->queries * a->heads / a->kv_heads, blocks = (rows + a->block - 1) / a->block;
  int64_t finished = 0;
  for (int64_t unit; (unit = a->progress.take(1, a->sequences * a->kv_heads * blocks)) >= 0; finished++)
    attend(Block(*a, unit));
  return finished;
}
