// y = x W^T + bias for few tokens, in one pass over W, whose rows stay where the checkpoint put them.
//
// Reading W is most of the work, so up to TOKENS tokens cost about as much as one. Each y[t][n] is one vector of partial
// sums, added up along the inputs in order and then across its lanes in a fixed tree: its bits depend on the two rows
// that it is the product of, and not on how many tokens or threads there are.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

// Of the OpenMP runtime that torch has loaded: a second one would have threads of its own, that wait by spinning.
extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);

namespace {

#ifdef __AVX512F__
constexpr int LANES = 16, TOKENS = 6;  // of 32 registers, 4 x 6 hold sums
#else
constexpr int LANES = 8, TOKENS = 2;  // of 16 registers, 4 x 2
#endif
constexpr int OUTPUTS = 4;       // rows of W at a time
constexpr int AHEAD = 9216;      // bytes between what is computed and what is fetched from memory
constexpr int CHUNK = 256 << 10;  // bytes of W that a thread takes at a time; they stay in its cache for further tokens

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Bf16s __attribute__((vector_size(2 * LANES)));
using Lanes = std::make_integer_sequence<int, LANES>;

struct Product {
  const float* x;      // [tokens, inputs]
  const void* weight;  // [outputs, inputs], float32 or bf16
  const float* bias;   // [outputs], or null
  float* y;            // [tokens, outputs]
  int64_t tokens, inputs, outputs;
  int64_t chunk;              // rows of W
  std::atomic<int64_t> next;  // the first row that no thread has taken
};

inline Vector load(const float* from) {
  Vector v;
  memcpy(&v, from, sizeof v);
  return v;
}

inline Vector load(const uint16_t* from) {  // a bf16 is the upper half of a float32
  Bf16s halves;
  memcpy(&halves, from, sizeof halves);
  return (Vector)(__builtin_convertvector(halves, Words) << 16);
}

template <class W>
inline Vector load(const W* from, int64_t count) {
  W padded[LANES] = {};
  memcpy(padded, from, count * sizeof(W));
  return load(padded);
}

// Where lane i of the folded vectors a and b comes from: the first half of a group of SIZE lanes; a's groups, then b's.
constexpr int source(int i, int size) {
  int lane = i % (LANES / 2), half = size / 2;
  return (i < LANES / 2 ? 0 : LANES) + lane / half * size + lane % half;
}

// Adds the second half of each group of SIZE lanes to the first.
template <int SIZE, int... I>
inline Vector fold(Vector a, Vector b, std::integer_sequence<int, I...>) {
#ifdef __clang__
  Vector first = __builtin_shufflevector(a, b, source(I, SIZE)...);
  return first + __builtin_shufflevector(a, b, (source(I, SIZE) + SIZE / 2)...);
#else
  Vector first = __builtin_shuffle(a, b, Words{source(I, SIZE)...});
  return first + __builtin_shuffle(a, b, Words{(source(I, SIZE) + SIZE / 2)...});
#endif
}

template <int SIZE>
inline Vector fold_all(Vector v) {
  if constexpr (SIZE == 1)
    return v;
  else
    return fold_all<SIZE / 2>(fold<SIZE>(v, v, Lanes()));
}

// The sums of four vectors' lanes, in the first four lanes.
inline Vector sum4(const Vector* v) {
  Vector ab = fold<LANES>(v[0], v[1], Lanes()), cd = fold<LANES>(v[2], v[3], Lanes());
  return fold_all<LANES / 4>(fold<LANES / 2>(ab, cd, Lanes()));
}

// OUTPUTS outputs of T tokens.
template <class W, int T>
void tile(const Product& p, int64_t row, int64_t token) {
  const int count = std::min<int64_t>(OUTPUTS, p.outputs - row);
  const float* x = p.x + token * p.inputs;
  const W* w[OUTPUTS];
  for (int n = 0; n < OUTPUTS; n++)  // where W ends sooner, its last row again
    w[n] = (const W*)p.weight + (row + std::min(n, count - 1)) * p.inputs;
  Vector sums[T][OUTPUTS] = {}, weights[OUTPUTS];
  int64_t k = 0;
  for (; k + LANES <= p.inputs; k += LANES) {
    for (int n = 0; n < OUTPUTS; n++) {
      weights[n] = load(w[n] + k);
      __builtin_prefetch((const char*)(w[n] + k) + AHEAD);
    }
    for (int t = 0; t < T; t++) {
      Vector v = load(x + t * p.inputs + k);
      for (int n = 0; n < OUTPUTS; n++) sums[t][n] += weights[n] * v;
    }
  }
  if (k < p.inputs) {
    for (int n = 0; n < OUTPUTS; n++) weights[n] = load(w[n] + k, p.inputs - k);
    for (int t = 0; t < T; t++) {
      Vector v = load(x + t * p.inputs + k, p.inputs - k);
      for (int n = 0; n < OUTPUTS; n++) sums[t][n] += weights[n] * v;
    }
  }
  float bias[OUTPUTS] = {};
  if (p.bias) memcpy(bias, p.bias + row, count * sizeof(float));
  for (int t = 0; t < T; t++) {
    Vector y = sum4(sums[t]);
    for (int n = 0; n < count; n++) p.y[(token + t) * p.outputs + row + n] = y[n] + bias[n];
  }
}

template <class W, int... I>
void tiles(const Product& p, int64_t row, int64_t end, int64_t token, int tokens, std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Product&, int64_t, int64_t) = {tile<W, I + 1>...};
  for (; row < end; row += OUTPUTS) by_tokens[tokens - 1](p, row, token);
}

template <class W>
void work(void* data) {
  Product& p = *(Product*)data;
  const int64_t groups = (p.tokens + TOKENS - 1) / TOKENS;
  for (int64_t row; (row = p.next.fetch_add(p.chunk)) < p.outputs;)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t token = p.tokens * g / groups, end = p.tokens * (g + 1) / groups;
      tiles<W>(p, row, std::min(row + p.chunk, p.outputs), token, end - token,
               std::make_integer_sequence<int, TOKENS>());
    }
}

}  // namespace

extern "C" void product(const float* x, const void* weight, int bf16, const float* bias, float* y, int64_t tokens,
                        int64_t inputs, int64_t outputs, int threads) {
  const int64_t row_bytes = inputs * (bf16 ? 2 : 4);
  const int64_t chunk = std::max<int64_t>(CHUNK / row_bytes / OUTPUTS, 1) * OUTPUTS;
  Product p{x, weight, bias, y, tokens, inputs, outputs, chunk, {0}};
  GOMP_parallel(bf16 ? work<uint16_t> : work<float>, &p, threads, 0);
}
