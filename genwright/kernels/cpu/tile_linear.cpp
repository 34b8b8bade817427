// y = x W^T with weights in tiles of 16 rows: by integers, with x rounded to 16 bits and a scale for every 32 columns, or
// by floats. Fused as fused_linear.cpp is. Bits depend only on the token and the row.

#include "dots.h"
#include "linear.h"

#include <utility>

namespace {

struct Exact {
  static constexpr int TOKENS = 4;
  float x[COLUMNS], sums[GROUPS];
};

void convert(const float* x, int64_t zero, Rounded& to) {
  constexpr int PARTS = COLUMNS / LANES, GROUP_PARTS = PARTS / GROUPS;
  Vector v[PARTS], largest = {}, zeros = {};
  for (int i = 0; i < PARTS; i++) {
    v[i] = load<Vector>(x + i * LANES);
    largest = larger(largest, larger(v[i], -v[i]));
    zeros += v[i] * 0;  // NaN where x is NaN or infinite; the scale passes it on
  }
  const float most = largest_lane(largest), inverse = most > 1e-30f ? LARGEST_CODE / most : 0;
  to.scale = most / LARGEST_CODE + fold_all<LANES>(zeros)[0];
  Vector sums[GROUPS] = {};
  for (int i = 0; i < PARTS; i++) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
    const Vector rounded = v[i] * inverse + 12582912.0f;
    write_codes((Ints)rounded - 0x4B400000, i * LANES, to);
    sums[i / GROUP_PARTS] += rounded - 12582912.0f;
  }
  for (int g = 0; g < GROUPS; g++) {
    const float sum = fold_all<LANES>(sums[g])[0];  // an integer below 2^24
    to.offset[g] = int32_t(DOT_ZERO - zero) * int32_t(sum);
    to.sums[g] = to.scale * sum;
  }
}

void convert(const float* x, int64_t, Exact& to) {
  constexpr int PARTS = COLUMNS / LANES / GROUPS;
  memcpy(to.x, x, sizeof to.x);
  for (int g = 0; g < GROUPS; g++) {
    Vector sum = {};
    for (int i = 0; i < PARTS; i++) sum += load<Vector>(x + (g * PARTS + i) * LANES);
    to.sums[g] = fold_all<LANES>(sum)[0];
  }
}

// The products of T tokens' x and the codes of a group, without the scales of W; x [T, stride].
template <int T>
inline void group_products(const Words* q, const Rounded* x, int64_t stride, int group, Ints, Vector* products) {
  Ints sums[T];
  dots<T>(q, x, stride, group, sums);
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) products[t] = __builtin_convertvector(sums[t], Vector);
}

template <int T>
inline void group_products(const Words* q, const Exact* x, int64_t stride, int group, Ints zero, Vector* products) {
  for (int t = 0; t < T; t++) {
    Vector sum = {};
    for (int k = group * GROUP_WORDS; k < (group + 1) * GROUP_WORDS; k++)
      for (int j = 0; j < 4; j++)
        sum += __builtin_convertvector((Ints)(q[k] >> (8 * j) & 255) - zero, Vector) * x[t * stride].x[4 * k + j];
    products[t] = sum;
  }
}

inline Vector scaled(Vector scale, const Rounded& x) { return scale * x.scale; }
inline Vector scaled(Vector scale, const Exact&) { return scale; }

// The products of a tile's rows, before `end`, with T tokens; x [tokens, units].
template <int T, class X>
void tile(const Tiles& w, const X* x, int64_t row, int64_t end, float* y, int64_t stride) {
  const int64_t units = w.units(), number = row / ROWS;
  const Ints zero = Ints{} + int32_t(w.zero);
  constexpr int SIDE = T == 1 ? VECTORS : 1;  // vectors of rows side by side; with one token, memory is read in order
  for (int v = 0; v < VECTORS; v += SIDE) {
    Scales<SIDE> scales(w, number, v);
    Vector sums[SIDE][T] = {};
    const auto add = [&](int64_t unit, int i) {
      Words q[WORDS];
      unpack(w, number * units + unit, v + i, q);
#pragma GCC unroll 2
      for (int g = 0; g < GROUPS; g++) {
        const Vector scale = scales.scale(unit, g, i);
        const Vector minimum = MINIMUMS ? scales.minimum(unit, g, i) : Vector{};
        Vector products[T];
        group_products<T>(q, x + unit, units, g, zero, products);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
          const X& here = x[t * units + unit];
          sums[i][t] += products[t] * scaled(scale, here);
          if (MINIMUMS) sums[i][t] += minimum * here.sums[g];
        }
      }
    };
    for (int64_t first = 0; first < units; first += BLOCK_UNITS) {
      scales.enter(first / BLOCK_UNITS);
      const int64_t last = std::min<int64_t>(first + BLOCK_UNITS, units);
      for (int64_t unit = first; unit < last; unit++)
#pragma GCC unroll 4
        for (int i = 0; i < SIDE; i++) add(unit, i);
    }
    for (int i = 0; i < SIDE; i++) {
      const int64_t lane = (v + i) * LANES, count = std::min<int64_t>(LANES, end - row - lane);
      for (int t = 0; t < T && count > 0; t++) memcpy(y + t * stride + lane, &sums[i][t], count * sizeof(float));
    }
  }
}

template <class X, int... I>
void tiles(const Tiles& w, const X* x, int64_t row, int64_t end, int tokens, float* products, int64_t stride,
           std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Tiles&, const X*, int64_t, int64_t, float*, int64_t) = {tile<I + 1, X>...};
  for (; row < end; row += ROWS, products += ROWS) by_tokens[tokens - 1](w, x, row, end, products, stride);
}

template <class X>
int64_t multiply(Product<Tiles>& p, int threads) {
  const Tiles& w = p.w;
  const int64_t units = w.units();
  thread_local std::vector<Vector> prepared;
  thread_local std::vector<X> x;
  const auto convert_inputs = [&] {
    prepared.assign(p.tokens * units * COLUMNS / LANES, Vector{});  // aligned, and zeros after the inputs
    x.resize(std::max<size_t>(x.size(), p.tokens * units));
    prepare(p, units * COLUMNS, false, prepared.data());
    for (int64_t i = 0; i < p.tokens * units; i++) convert((const float*)prepared.data() + i * COLUMNS, w.zero, x[i]);
  };
  return by_chunks(p, threads, convert_inputs, [&](int64_t row, int64_t end, float* products, int64_t to_token) {
    for (int64_t token = 0; token < p.tokens; token += X::TOKENS) {
      const int count = std::min<int64_t>(X::TOKENS, p.tokens - token);
      tiles(w, x.data() + token * units, row, end, count, products + token * to_token, to_token,
             std::make_integer_sequence<int, X::TOKENS>());
    }
  });
}

struct Lookup {         // `Lookup` of tile_linear.py
  Progress progress;    // units of work: rows of y
  Tiles w;
  const int64_t* rows;  // [count]
  void* y;              // [count, inputs]
  int64_t count, bf16;
};

void dequantize_row(const Tiles& w, int64_t row, void* to, int64_t at, bool bf16) {
  const int64_t units = w.units(), number = row / ROWS;
  const int v = row % ROWS / LANES, lane = row % LANES;
  Scales<1> scales(w, number, v);
  for (int64_t unit = 0; unit < units; unit++) {
    scales.enter(unit / BLOCK_UNITS);
    Words q[WORDS];
    unpack(w, number * units + unit, v, q);
    float values[COLUMNS];
    for (int g = 0; g < GROUPS; g++) {
      const float scale = scales.scale(unit, g, 0)[lane], minimum = MINIMUMS ? scales.minimum(unit, g, 0)[lane] : 0;
      for (int i = g * (COLUMNS / GROUPS); i < (g + 1) * (COLUMNS / GROUPS); i++)
        values[i] = (int32_t(q[i / 4][lane] >> 8 * (i % 4) & 255) - int32_t(w.zero)) * scale + minimum;
    }
    for (int64_t i = 0, column = unit * COLUMNS; i < COLUMNS && column + i < w.inputs; i += LANES)
      write(rounded(load<Vector>(values + i), bf16), to, at + column + i, w.inputs - column - i, bf16);
  }
}

}  // namespace

// One thread's part of y = W[rows].
extern "C" int64_t look_up_part(Lookup* p, int) {
  int64_t finished = 0;
  for (int64_t i; (i = p->progress.take(1, p->count)) >= 0; finished++)
    dequantize_row(p->w, p->rows[i], p->y, i * p->w.inputs, p->bf16);
  return finished;
}

// One thread's part of y = x W^T with its epilogue. Every thread converts x for itself.
extern "C" int64_t rounded_part(Product<Tiles>* p, int threads) { return multiply<Rounded>(*p, threads); }
extern "C" int64_t exact_part(Product<Tiles>* p, int threads) { return multiply<Exact>(*p, threads); }
