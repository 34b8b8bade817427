// y = x W^T + bias for few tokens, in one pass over W, whose rows stay where the checkpoint put them, packed or not.
//
// Where reading W is most of the work, up to TOKENS tokens cost about as much as one. Each y[t][n] is one vector of partial
// sums, added up along the inputs in order and then across its lanes in a fixed tree: its bits depend on the two rows
// that it is the product of, and not on how many tokens or threads there are.

#include "weights.h"

#include <atomic>
#include <utility>
#include <vector>

// Of the OpenMP runtime that torch has loaded: a second one would have threads of its own, that wait by spinning.
extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);

namespace {

using F = FORMAT;  // which the compiler is told
constexpr Scales S = SCALES;
constexpr int64_t COLUMNS = F::PARTS * LANES;                 // of a step
constexpr int64_t WIDTH = COLUMNS + (S == MINIMUMS) * LANES;  // floats of x in a step; the last are the parts' sum
constexpr int TOKENS = LANES == 16 ? 6 : 2;                   // of 32 registers, or of 16, most hold sums
constexpr bool PLAIN = F::PARTS == 1;
constexpr int MOST_OUTPUTS = 16;
// Rows of W at a time: four are read from memory faster than more; with many tokens more share what is read of x.
constexpr int outputs_of(int tokens) { return PLAIN || tokens < 3 ? 4 : MOST_OUTPUTS; }
constexpr int AHEAD = 9216;      // bytes between what is computed and what is fetched from memory
constexpr int CHUNK = 256 << 10;  // bytes of W that a thread takes at a time; they stay in its cache for further tokens

struct Product {
  Groups groups;
  int64_t steps;      // of a row
  const float* x;     // plain weights: [tokens, steps, WIDTH]; others: [turns, steps, tokens of the turn, WIDTH]
  const float* bias;  // [outputs], or null
  float* y;           // [tokens, outputs]
  int64_t tokens;
  int64_t chunk;              // rows of W
  std::atomic<int64_t> next;  // the first row that no thread has taken
};

void read_scales(const Groups& groups, int64_t row, float* scales) {
  float* minimums = scales + groups.floats;
  groups.read(groups.w.scales, row, F::UNIT, scales);
  if constexpr (S == MINIMUMS) {  // q s + m = (q - 8) s + (m + 8 s)
    groups.read(groups.w.minimums, row, 1, minimums);
    for (int64_t i = 0; i < groups.floats; i++) minimums[i] += 8 * scales[i];
  }
}

// Calls `use` with the first and the number of some tokens, as even as can be.
template <class Use>
void by_turns(int64_t tokens, Use use) {
  const int64_t turns = (tokens + TOKENS - 1) / TOKENS;
  for (int64_t i = 0; i < turns; i++) use(tokens * i / turns, tokens * (i + 1) / turns - tokens * i / turns);
}

// Some outputs of T tokens.
template <int T>
void tile(const Product& p, int64_t row, int64_t token, float* scratch) {
  constexpr int OUTPUTS = outputs_of(T);
  const Groups groups = p.groups;
  const Matrix& w = groups.w;
  const int count = std::min<int64_t>(OUTPUTS, w.outputs - row);
  const int64_t whole = w.row_bytes / F::BYTES;
  const float* x = p.x + token * p.steps * WIDTH;
  const int64_t to_token = PLAIN ? p.steps * WIDTH : WIDTH, to_step = PLAIN ? WIDTH : T * WIDTH;
  const char* rows[OUTPUTS];
  char padded[OUTPUTS][F::BYTES] = {};  // the last step, where it is not a whole one
  for (int n = 0; n < OUTPUTS; n++) {
    const int64_t here = row + std::min(n, count - 1);  // where W ends sooner, its last row again
    rows[n] = w.values + here * w.row_bytes;
    if (whole < p.steps) memcpy(padded[n], rows[n] + whole * F::BYTES, w.row_bytes % F::BYTES);
    if constexpr (S != ROWS) read_scales(groups, here, scratch + n * 2 * groups.floats);
  }
  Vector sums[T][OUTPUTS] = {};
  for (int64_t k = 0; k < p.steps; k++, x += to_step)
    for (int n = 0; n < OUTPUTS; n++) {
      const char* from = k < whole ? rows[n] + k * F::BYTES : padded[n];
      __builtin_prefetch(from + AHEAD);
      Vector parts[T] = {};
      for (int j = 0; j < F::PARTS; j++) {
        const Vector weights = F::part(from, j);
        for (int t = 0; t < T; t++)
          (PLAIN ? sums[t][n] : parts[t]) += weights * load<Vector>(x + t * to_token + j * LANES);
      }
      const float* scales = scratch + n * 2 * groups.floats;
      const Vector scale = S == ROWS ? Vector{} + 1 : groups.of(scales, k);
      for (int t = 0; t < T && !PLAIN; t++) sums[t][n] += parts[t] * scale;
      if constexpr (S == MINIMUMS) {
        const Vector minimum = groups.of(scales + groups.floats, k);
        for (int t = 0; t < T; t++) sums[t][n] += minimum * load<Vector>(x + t * to_token + COLUMNS);
      }
    }
  for (int t = 0; t < T; t++)
    for (int n = 0; n < count; n += 4) {
      const Vector four = sum4(sums[t] + n);
      for (int i = 0; i < 4 && n + i < count; i++) {
        const int64_t here = row + n + i;
        const float scale = S == ROWS && w.scales ? groups.one(w.scales, here / w.height) * F::UNIT : 1;
        p.y[(token + t) * w.outputs + here] = four[i] * scale + (p.bias ? p.bias[here] : 0);
      }
    }
}

template <int... I>
void tiles(const Product& p, int64_t row, int64_t end, int64_t token, int tokens, float* scratch,
           std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Product&, int64_t, int64_t, float*) = {tile<I + 1>...};
  for (; row < end; row += outputs_of(tokens)) by_tokens[tokens - 1](p, row, token, scratch);
}

void multiply(void* data) {
  Product& p = *(Product*)data;
  const int64_t outputs = p.groups.w.outputs;
  std::vector<float> scratch(MOST_OUTPUTS * 2 * p.groups.floats);
  for (int64_t row; (row = p.next.fetch_add(p.chunk)) < outputs;)
    by_turns(p.tokens, [&](int64_t token, int64_t count) {
      tiles(p, row, std::min(row + p.chunk, outputs), token, count, scratch.data(),
            std::make_integer_sequence<int, TOKENS>());
    });
}

struct Rows {
  Groups groups;
  int64_t steps;
  float* to;  // [end - first, steps, COLUMNS]
  int64_t first, end;
  std::atomic<int64_t> next;
};

void dequantize(void* data) {
  Rows& p = *(Rows*)data;
  const Matrix& w = p.groups.w;
  std::vector<float> scratch(2 * p.groups.floats, 1);
  float *scales = scratch.data(), *minimums = scales + p.groups.floats;
  for (int64_t row; (row = p.next.fetch_add(1)) < p.end;) {
    float* to = p.to + (row - p.first) * p.steps * COLUMNS;
    if (w.scales) read_scales(p.groups, row, scales);
    for (int64_t k = 0; k < p.steps; k++) {
      char step[F::BYTES] = {};
      const int64_t from = k * F::BYTES;
      memcpy(step, w.values + row * w.row_bytes + from, std::min<int64_t>(F::BYTES, w.row_bytes - from));
      for (int j = 0; j < F::PARTS; j++, to += LANES) {
        Vector v = F::part(step, j) * p.groups.of(scales, k);
        if constexpr (S == MINIMUMS) v += p.groups.of(minimums, k);
        memcpy(to, &v, sizeof v);
      }
    }
  }
}

// x [tokens, inputs] in the order of steps, 0 beyond the last column: [steps, tokens, COLUMNS and perhaps their sum].
void arrange(const float* x, int64_t tokens, int64_t inputs, bool sums, float* to) {
  for (int64_t column = 0; column < inputs; column += COLUMNS)
    for (int64_t t = 0; t < tokens; t++) {
      float step[COLUMNS] = {};
      memcpy(step, x + t * inputs + column, std::min(COLUMNS, inputs - column) * sizeof(float));
      Vector sum = {};
      for (int j = 0; j < F::PARTS; j++, to += LANES) {
        for (int i = 0; i < LANES; i++) to[i] = step[F::column(i, j)];
        sum += load<Vector>(to);
      }
      if (sums) memcpy(to, &sum, sizeof sum), to += LANES;
    }
}

int64_t steps_of(const Matrix* w) { return (w->inputs + COLUMNS - 1) / COLUMNS; }

}  // namespace

// Floats in a row of `widen`, and of `reorder`, which puts x in the same order.
extern "C" int64_t row_floats(const Matrix* w) { return steps_of(w) * COLUMNS; }

extern "C" void reorder(const Matrix* w, const float* x, int64_t tokens, float* to) {
  for (int64_t t = 0; t < tokens; t++) arrange(x + t * w->inputs, 1, w->inputs, false, to + t * row_floats(w));
}

// y = x W^T + bias
extern "C" void product(const Matrix* w, const float* x, const float* bias, float* y, int64_t tokens, int threads) {
  const int64_t steps = steps_of(w);
  const int64_t chunk = std::max<int64_t>(CHUNK / std::max<int64_t>(w->row_bytes, 1) / MOST_OUTPUTS, 1) * MOST_OUTPUTS;
  const bool in_place = PLAIN && w->inputs % COLUMNS == 0;
  std::vector<Vector> arranged(in_place ? 0 : tokens * steps * WIDTH / LANES);  // which are aligned
  float* ordered = (float*)arranged.data();
  if (PLAIN && !in_place) reorder(w, x, tokens, ordered);
  if (!PLAIN)
    by_turns(tokens, [&](int64_t token, int64_t count) {
      arrange(x + token * w->inputs, count, w->inputs, S == MINIMUMS, ordered + token * steps * WIDTH);
    });
  Product p{Groups(*w, F::PARTS), steps, in_place ? x : ordered, bias, y, tokens, chunk, {0}};
  GOMP_parallel(multiply, &p, threads, 0);
}

// The rows of W from `first` to `end` in float32.
extern "C" void widen(const Matrix* w, int64_t first, int64_t end, float* to, int threads) {
  Rows rows{Groups(*w, F::PARTS), steps_of(w), to, first, end, {first}};
  GOMP_parallel(dequantize, &rows, threads, 0);
}
