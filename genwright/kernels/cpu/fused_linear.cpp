// y = x W^T for few tokens, in one pass over W, which is read in place, packed or not. Fused with a norm before it and a
// bias, an MLP's gate and a residual after it, and rounded where plain torch rounds.
//
// The time is mostly that of reading W, so further tokens cost little. The product of a token and a row is one vector of
// partial sums, added along the inputs in order and then across its lanes in a fixed tree. Its bits depend only on the
// token and the row, not on the number of tokens or threads.

#include "linear.h"
#include "weights.h"

#include <type_traits>
#include <utility>

namespace {

using F = FORMAT;  // a compiler flag
constexpr Scales S = SCALES;
constexpr bool PAIRS = std::is_same_v<F, Bf16Pairs>;
constexpr bool PLAIN = F::PARTS == 1 || PAIRS;  // x stays in its order
constexpr int64_t COLUMNS = F::PARTS * LANES;   // per step
// Floats of x per step, or pairs of bf16; with MINIMUMS, followed by the sum of the parts.
constexpr int64_t WIDTH = PAIRS ? LANES : COLUMNS + (S == MINIMUMS) * LANES;
constexpr int TOKENS = REGISTERS == 32 ? 6 : 2;  // at a time, so that the sums fit the 32 or 16 vector registers
constexpr int MAX_OUTPUTS = CHUNK_MULTIPLE;
// Rows of W at a time. Four rows are read from memory fastest; with many tokens, more rows share the loads of x.
constexpr int outputs_of(int tokens) { return PLAIN || tokens < 3 ? 4 : MAX_OUTPUTS; }
// Whether those rows are computed one after the other, which reads memory in order; side by side, they share loads of x.
constexpr bool one_by_one(int tokens) { return tokens == 1 || (PLAIN && tokens < (PAIRS ? 6 : 5)); }

struct Inputs {  // what all tiles of a call read
  Groups groups;
  int64_t steps;   // per row
  const float* x;  // PLAIN: [tokens, steps, WIDTH]; others: [turns, steps, tokens of the turn, WIDTH]
};

void read_scales(const Groups& groups, int64_t row, float* scales) {
  float* minimums = scales + groups.floats;
  groups.read(groups.w.scales, row, F::UNIT, scales);
  if constexpr (S == MINIMUMS) {  // q s + m = (q - 8) s + (m + 8 s)
    groups.read(groups.w.minimums, row, 1, minimums);
    for (int64_t i = 0; i < groups.floats; i++) minimums[i] += 8 * scales[i];
  }
}

// Split the tokens into turns of nearly equal size, and call `use` with the first token and the count of each.
template <class Use>
void by_turns(int64_t tokens, Use use) {
  const int64_t turns = (tokens + TOKENS - 1) / TOKENS;
  for (int64_t i = 0; i < turns; i++) use(tokens * i / turns, tokens * (i + 1) / turns - tokens * i / turns);
}

// The products of up to OUTPUTS rows from `row` on, before `end`, with T tokens.
template <int T>
void tile(const Inputs& p, int64_t row, int64_t end, int64_t token, float* scratch, float* products, int64_t stride) {
  constexpr int OUTPUTS = outputs_of(T);
  const Groups groups = p.groups;
  const Matrix& w = groups.w;
  const int count = std::min<int64_t>(OUTPUTS, end - row);
  const int64_t whole = w.row_bytes / F::BYTES;
  const float* x = p.x + token * p.steps * WIDTH;
  const int64_t to_token = PLAIN ? p.steps * WIDTH : WIDTH, to_step = PLAIN ? WIDTH : T * WIDTH;
  const char* rows[OUTPUTS];
  char padded[OUTPUTS][F::BYTES] = {};  // the last step, if it is incomplete
  for (int n = 0; n < OUTPUTS; n++) {
    const int64_t here = row + std::min(n, count - 1);  // past the end, repeat the last row
    rows[n] = w.values + here * w.row_bytes;
    if (whole < p.steps) memcpy(padded[n], rows[n] + whole * F::BYTES, w.row_bytes % F::BYTES);
    if constexpr (S != ROWS) read_scales(groups, here, scratch + n * 2 * groups.floats);
  }
  Vector sums[T][OUTPUTS] = {};
  const auto add = [&](int n, int64_t k) {
    const char* from = k < whole ? rows[n] + k * F::BYTES : padded[n];
    const float* here = x + k * to_step;
    if (!one_by_one(T))  // prefetch the next rows in memory order
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
      for (int t = 0; t < T; t++) {
        Vector& sum = PLAIN ? sums[t][n] : parts[t];
        sum = multiply_add(weights, load<Vector>(here + t * to_token + j * LANES), sum);
      }
    }
    const float* scales = scratch + n * 2 * groups.floats;
    const Vector scale = S == ROWS ? Vector{} + 1 : groups.of(scales, k);
    for (int t = 0; t < T && !PLAIN; t++) sums[t][n] = multiply_add(parts[t], scale, sums[t][n]);
    if constexpr (S == MINIMUMS) {
      const Vector minimum = groups.of(scales + groups.floats, k);
      for (int t = 0; t < T; t++)
        sums[t][n] = multiply_add(minimum, load<Vector>(here + t * to_token + COLUMNS), sums[t][n]);
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
        products[(token + t) * stride + n + i] = four[i] * scale;
      }
    }
}

template <int... I>
void tiles(const Inputs& p, int64_t row, int64_t end, int64_t token, int tokens, float* scratch, float* products,
           int64_t stride, std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Inputs&, int64_t, int64_t, int64_t, float*, float*, int64_t) = {
      tile<I + 1>...};
  const int outputs = outputs_of(tokens);
  for (; row < end; row += outputs, products += outputs)
    by_tokens[tokens - 1](p, row, end, token, scratch, products, stride);
}

struct Rows {
  Groups groups;
  int64_t steps;
  void* to;  // [end - first, steps, COLUMNS], float32 or bf16
  bool bf16;
  int64_t first, end;
  std::atomic<int64_t> next;
};

void dequantize(void* data) {
  Rows& p = *(Rows*)data;
  const Matrix& w = p.groups.w;
  std::vector<float> scratch(2 * p.groups.floats, 1);
  float *scales = scratch.data(), *minimums = scales + p.groups.floats;
  for (int64_t row; (row = p.next.fetch_add(1)) < p.end;) {
    int64_t at = (row - p.first) * p.steps * COLUMNS;
    if (w.scales) read_scales(p.groups, row, scales);
    for (int64_t k = 0; k < p.steps; k++) {
      char step[F::BYTES] = {};
      const int64_t from = k * F::BYTES;
      memcpy(step, w.values + row * w.row_bytes + from, std::min<int64_t>(F::BYTES, w.row_bytes - from));
      for (int j = 0; j < F::PARTS; j++, at += LANES) {
        const Vector minimum = S == MINIMUMS ? p.groups.of(minimums, k) : Vector{};
        const Vector v = multiply_add(F::part(step, j), p.groups.of(scales, k), minimum);
        write(rounded(v, p.bf16), p.to, at, LANES, p.bf16);
      }
    }
  }
}

// Reorder x [tokens, inputs] (row stride `stride`) to [steps, tokens, COLUMNS], zero-padded, followed in each step by the
// sum of its parts if `sums`.
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

// The number of floats in a row of `widen` and of `reorder`, which puts x in the same order.
extern "C" int64_t row_floats(const Matrix* w) { return steps_of(w) * COLUMNS; }

extern "C" void reorder(const Matrix* w, const float* x, int64_t tokens, float* to) {
  for (int64_t t = 0; t < tokens; t++) arrange(x + t * w->inputs, 0, 1, w->inputs, false, to + t * row_floats(w));
}

// One thread's part of y = x W^T with its epilogue. Every thread prepares x for itself, because waiting for another one
// to do it would take as long.
extern "C" int64_t linear_part(Product<Matrix>* p, int threads) {
  const Matrix* w = &p->w;
  const int64_t steps = steps_of(w), stride = steps * COLUMNS;
  thread_local std::vector<Vector> prepared, arranged;
  thread_local std::vector<float> scratch;
  Inputs inputs{Groups(*w, F::PARTS), steps, (const float*)p->x};
  const auto prepare_inputs = [&] {
    scratch.resize(MAX_OUTPUTS * 2 * inputs.groups.floats);
    if (PLAIN && PAIRS == bool(p->epilogue.bf16) && !p->epilogue.norm && w->inputs == stride) return;  // x is ready
    prepared.assign(p->tokens * stride / LANES, Vector{});  // aligned, and zeros after the inputs
    prepare(*p, 0, p->tokens, stride, PAIRS, prepared.data());
    inputs.x = (const float*)prepared.data();
    if (PLAIN) return;
    arranged.resize(p->tokens * steps * WIDTH / LANES);
    by_turns(p->tokens, [&](int64_t token, int64_t count) {
      float* to = (float*)arranged.data() + token * steps * WIDTH;
      arrange(inputs.x + token * stride, stride, count, w->inputs, S == MINIMUMS, to);
    });
    inputs.x = (const float*)arranged.data();
  };
  return by_chunks(*p, threads, prepare_inputs, [&](int64_t row, int64_t end, float* products, int64_t to_token) {
    by_turns(p->tokens, [&](int64_t token, int64_t count) {
      tiles(inputs, row, end, token, count, scratch.data(), products, to_token,
            std::make_integer_sequence<int, TOKENS>());
    });
  });
}

// Dequantize the rows of W from `first` to `end` to float32 or bf16.
extern "C" void widen(const Matrix* w, int64_t first, int64_t end, void* to, bool bf16, int threads) {
  Rows rows{Groups(*w, F::PARTS), steps_of(w), to, bf16, first, end, {first}};
  GOMP_parallel(dequantize, &rows, threads, 0);
}
