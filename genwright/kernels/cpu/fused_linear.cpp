// y = x W^T for few tokens, in one pass over W, whose rows stay where the checkpoint put them, packed or not, and what stands
// around it: before it a norm, after it a bias, the gate of an MLP, a residual; rounded where plain torch rounds.
//
// Where reading W is most of the work, further tokens cost little. Each sum of a token and a row is one vector of partial
// sums, added up along the inputs in order and then across its lanes in a fixed tree: its bits depend on the two rows
// that it is the product of, and not on how many tokens or threads there are.

#include "weights.h"

#include <atomic>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

// Of the OpenMP runtime that torch has loaded: a second one would have threads of its own, that wait by spinning.
extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);

namespace {

using F = FORMAT;  // which the compiler is told
constexpr Scales S = SCALES;
constexpr bool PAIRS = std::is_same_v<F, Bf16Pairs>;
constexpr bool PLAIN = F::PARTS == 1 || PAIRS;  // x stays in its order
constexpr int64_t COLUMNS = F::PARTS * LANES;   // of a step
// Floats of x in a step, or pairs of bf16; of MINIMUMS the last are the parts' sum.
constexpr int64_t WIDTH = PAIRS ? LANES : COLUMNS + (S == MINIMUMS) * LANES;
constexpr int TOKENS = LANES == 16 ? 6 : 2;  // of 32 registers, or of 16, most hold sums
constexpr int MOST_OUTPUTS = 16;
// Rows of W at a time: four are read from memory faster than more; with many tokens more share what is read of x.
constexpr int outputs_of(int tokens) { return PLAIN || tokens < 3 ? 4 : MOST_OUTPUTS; }
// Of those, one after the other: memory is read in its order, which the processor foresees. Side by side they share x.
constexpr bool one_by_one(int tokens) { return tokens == 1 || (PLAIN && tokens < (PAIRS ? 6 : 5)); }
constexpr int CHUNK = 256 << 10;  // bytes of W that a thread takes at a time; they stay in its cache for further tokens

struct Epilogue {             // `Epilogue` of products.py: in x's type, or null
  const void *norm, *bias;  // [inputs], [outputs]
  const void* residual;     // as y
  float eps;                // of the norm
  int32_t gate;             // y is silu(first half) * second half
  int32_t narrow;           // whether x's type is bf16, else float32
};

struct Product {
  Groups groups;
  Epilogue around;
  int64_t steps;   // of a row
  const float* x;  // PLAIN: [tokens, steps, WIDTH]; others: [turns, steps, tokens of the turn, WIDTH]
  float* sums;     // [tokens, outputs]
  void* y;         // [tokens, outputs or half of them]
  int64_t tokens;
  int64_t rows, chunk;        // of y, and of those that a thread takes at a time
  std::atomic<int64_t> next;  // the first row that no thread has taken
};

Vector silu(Vector v) {
  const Vector e = exponential(v > 0 ? -v : v);
  return v * (v > 0 ? Vector{} + 1 : e) / (1 + e);
}

// x [tokens, inputs], normed if there is a norm, in rows of `stride` numbers: float32, or bf16 for PAIRS.
void prepare(const void* x, int64_t tokens, int64_t inputs, const Epilogue& around, int64_t stride, void* to) {
  for (int64_t t = 0; t < tokens; t++) {
    Vector squares = {};
    for (int64_t i = 0; around.norm && i < inputs; i += LANES) {
      const Vector v = read(x, t * inputs + i, inputs - i, around.narrow);
      squares += v * v;
    }
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += squares[i];
    const float factor = 1 / std::sqrt(sum / inputs + around.eps);
    for (int64_t i = 0; i < inputs; i += LANES) {
      Vector v = read(x, t * inputs + i, inputs - i, around.narrow);
      if (around.norm) {
        const Vector weight = read(around.norm, i, inputs - i, around.narrow);
        v = rounded(rounded(v * factor, around.narrow) * weight, around.narrow);
      }
      write(v, to, t * stride + i, inputs - i, PAIRS);
    }
  }
}

// The sums of rows `first` to `end` become what they are to be in y.
void finish(const Product& p, int64_t first, int64_t end) {
  const Epilogue& a = p.around;
  const int64_t outputs = p.groups.w.outputs;
  const auto value = [&](int64_t t, int64_t row, int64_t count) {
    const Vector sum = read(p.sums, t * outputs + row, count, false);
    return rounded(a.bias ? sum + read(a.bias, row, count, a.narrow) : sum, a.narrow);
  };
  for (int64_t t = 0; t < p.tokens; t++)
    for (int64_t row = first; row < end; row += LANES) {
      const int64_t count = end - row, at = t * p.rows + row;
      Vector v = value(t, row, count);
      if (a.gate) v = rounded(rounded(silu(v), a.narrow) * value(t, p.rows + row, count), a.narrow);
      if (a.residual) v = rounded(read(a.residual, at, count, a.narrow) + v, a.narrow);
      write(v, p.y, at, count, a.narrow);
    }
}

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

// Some outputs, before `end`, of T tokens.
template <int T>
void tile(const Product& p, int64_t row, int64_t end, int64_t token, float* scratch) {
  constexpr int OUTPUTS = outputs_of(T);
  const Groups groups = p.groups;
  const Matrix& w = groups.w;
  const int count = std::min<int64_t>(OUTPUTS, end - row);
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
  const auto add = [&](int n, int64_t k) {
    const char* from = k < whole ? rows[n] + k * F::BYTES : padded[n];
    const float* here = x + k * to_step;
    if (!one_by_one(T))  // the next rows, in memory's order
      __builtin_prefetch(rows[0] + OUTPUTS * w.row_bytes + (k * OUTPUTS + n) * F::BYTES);
    Vector parts[T] = {};
#ifdef __AVX512BF16__
    for (int t = 0; t < T && PAIRS; t++) {
      const __m512bh pairs = (__m512bh)load<__m512i>(here + t * to_token);
      sums[t][n] = (Vector)_mm512_dpbf16_ps((__m512)sums[t][n], (__m512bh)load<__m512i>(from), pairs);
    }
#else
    static_assert(!PAIRS);
#endif
    for (int j = 0; j < F::PARTS && !PAIRS; j++) {
      const Vector weights = F::part(from, j);
      for (int t = 0; t < T; t++)
        (PLAIN ? sums[t][n] : parts[t]) += weights * load<Vector>(here + t * to_token + j * LANES);
    }
    const float* scales = scratch + n * 2 * groups.floats;
    const Vector scale = S == ROWS ? Vector{} + 1 : groups.of(scales, k);
    for (int t = 0; t < T && !PLAIN; t++) sums[t][n] += parts[t] * scale;
    if constexpr (S == MINIMUMS) {
      const Vector minimum = groups.of(scales + groups.floats, k);
      for (int t = 0; t < T; t++) sums[t][n] += minimum * load<Vector>(here + t * to_token + COLUMNS);
    }
  };
  if constexpr (one_by_one(T)) {
    for (int n = 0; n < OUTPUTS; n++)
      for (int64_t k = 0; k < p.steps; k++) add(n, k);
  } else {
    for (int64_t k = 0; k < p.steps; k++)
      for (int n = 0; n < OUTPUTS; n++) add(n, k);
  }
  for (int t = 0; t < T; t++)
    for (int n = 0; n < count; n += 4) {
      const Vector four = sum4(sums[t] + n);
      for (int i = 0; i < 4 && n + i < count; i++) {
        const int64_t here = row + n + i;
        const float scale = S == ROWS && w.scales ? groups.one(w.scales, here / w.height) * F::UNIT : 1;
        p.sums[(token + t) * w.outputs + here] = four[i] * scale;
      }
    }
}

template <int... I>
void tiles(const Product& p, int64_t row, int64_t end, int64_t token, int tokens, float* scratch,
           std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Product&, int64_t, int64_t, int64_t, float*) = {tile<I + 1>...};
  for (; row < end; row += outputs_of(tokens)) by_tokens[tokens - 1](p, row, end, token, scratch);
}

void multiply(void* data) {
  Product& p = *(Product*)data;
  std::vector<float> scratch(MOST_OUTPUTS * 2 * p.groups.floats);
  for (int64_t first; (first = p.next.fetch_add(p.chunk)) < p.rows;) {
    const int64_t end = std::min(first + p.chunk, p.rows);
    for (int64_t shift = 0; shift < p.groups.w.outputs; shift += p.rows)  // with a gate, both halves' rows
      by_turns(p.tokens, [&](int64_t token, int64_t count) {
        tiles(p, shift + first, shift + end, token, count, scratch.data(), std::make_integer_sequence<int, TOKENS>());
      });
    if (p.y != p.sums) finish(p, first, end);
  }
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

// x [tokens, inputs], rows `stride` apart, in the order of steps, 0 beyond the last column:
// [steps, tokens, COLUMNS and perhaps their sum].
void arrange(const float* x, int64_t stride, int64_t tokens, int64_t inputs, bool sums, float* to) {
  for (int64_t column = 0; column < inputs; column += COLUMNS)
    for (int64_t t = 0; t < tokens; t++) {
      float step[COLUMNS] = {};
      memcpy(step, x + t * stride + column, std::min(COLUMNS, inputs - column) * sizeof(float));
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
  for (int64_t t = 0; t < tokens; t++) arrange(x + t * w->inputs, 0, 1, w->inputs, false, to + t * row_floats(w));
}

// y = x W^T, and what stands around it: x [tokens, inputs]
extern "C" void product(const Matrix* w, const Epilogue* around, const void* x, void* y, int64_t tokens, int threads) {
  const int64_t steps = steps_of(w), stride = steps * COLUMNS, rows = w->outputs / (around->gate ? 2 : 1);
  const bool in_place = PLAIN && PAIRS == bool(around->narrow) && !around->norm && w->inputs == stride;
  const bool finished = !around->narrow && !around->bias && !around->gate && !around->residual;
  std::vector<Vector> prepared(in_place ? 0 : tokens * stride / LANES);  // which are aligned, and zeros
  std::vector<Vector> arranged(PLAIN ? 0 : tokens * steps * WIDTH / LANES);
  std::vector<float> sums(finished ? 0 : tokens * w->outputs);
  const float* inputs = (const float*)(in_place ? x : prepared.data());
  if (!in_place) prepare(x, tokens, w->inputs, *around, stride, prepared.data());
  if (!PLAIN)
    by_turns(tokens, [&](int64_t token, int64_t count) {
      float* to = (float*)arranged.data() + token * steps * WIDTH;
      arrange(inputs + token * stride, stride, count, w->inputs, S == MINIMUMS, to);
    });
  // As many for each thread, of about CHUNK bytes.
  const int64_t parts = threads * std::max<int64_t>(w->outputs * w->row_bytes / (CHUNK * threads), 1);
  const int64_t chunk = ((rows + parts - 1) / parts + MOST_OUTPUTS - 1) / MOST_OUTPUTS * MOST_OUTPUTS;
  Product p{Groups(*w, F::PARTS), *around, steps, PLAIN ? inputs : (const float*)arranged.data(),
            finished ? (float*)y : sums.data(), y, tokens, rows, std::max<int64_t>(chunk, 1), {0}};
  GOMP_parallel(multiply, &p, threads, 0);
}

// The rows of W from `first` to `end` in float32.
extern "C" void widen(const Matrix* w, int64_t first, int64_t end, float* to, int threads) {
  Rows rows{Groups(*w, F::PARTS), steps_of(w), to, first, end, {first}};
  GOMP_parallel(dequantize, &rows, threads, 0);
}
