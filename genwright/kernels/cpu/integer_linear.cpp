// y = x W^T for few tokens by integer arithmetic: x is rounded to 8 bits with a scale for every 32 columns, and the packed
// codes of W are multiplied as they are stored. Fused as fused_linear.cpp is.
//
// A weight is (code - zero) scale + minimum, so the product of a row and a token is, over units u of 16 or 32 columns,
//   sum_u scale_u x_scale_u dot(code, x_code)_u + sum_u (minimum_u - zero scale_u) x_scale_u sum(x_code)_u.
// The second sum needs no codes of W. Bits depend only on the token and the row.

#include "codes.h"
#include "linear.h"

#include <utility>

namespace {

using C = CODES;                      // a compiler flag
constexpr int UNIT = GROUP < 32 ? GROUP : 32;  // columns that share the scales of both W and x; a flag: 16 or 32
constexpr int X_GROUP = 32;           // columns of x that share a scale
constexpr int64_t COLUMNS = C::PARTS * 4 * LANES;  // per step
constexpr int STEP_UNITS = COLUMNS / UNIT;
constexpr int ROWS_AT_ONCE = 4;
constexpr int TOKENS = LANES == 16 ? 8 : 4;  // at a time

struct Rounded {
  int64_t steps, units;        // per row; units include zeros for a last vector of them
  const char* codes;           // [tokens, steps, COLUMNS], in the order of C
  const float *scales, *sums;  // [tokens, units]; a sum is that of the rounded x
};

// Round one row of x, float32 [steps * COLUMNS], whose columns after the inputs are zero.
void round_row(const float* x, int64_t steps, char* codes, float* scales, float* sums) {
  constexpr int VECTORS = X_GROUP / LANES;
  for (int64_t group = 0; group < steps * COLUMNS / X_GROUP; group++) {
    Vector v[VECTORS], largest = {}, zeros = {};
    for (int i = 0; i < VECTORS; i++) {
      v[i] = load<Vector>(x + group * X_GROUP + i * LANES);
      largest = larger(largest, larger(v[i], -v[i]));
      zeros += v[i] * 0;  // NaN where x is NaN or infinite; the scale passes it on
    }
    float most = 0, zero = 0;
    for (int i = 0; i < LANES; i++) most = std::max(most, largest[i]), zero += zeros[i];
    const float scale = most / 127 + zero, inverse = most > 0 ? 127 / most : 0;
    alignas(64) int8_t bytes[X_GROUP];
    for (int i = 0; i < VECTORS; i++) {
      // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
      const Bytes rounded = __builtin_convertvector((Ints)(v[i] * inverse + 12582912.0f), Bytes);
      memcpy(bytes + i * LANES, &rounded, sizeof rounded);
    }
    for (int part = 0; part < X_GROUP / UNIT; part++) {
      int sum = 0;
      for (int i = 0; i < UNIT; i++) sum += bytes[part * UNIT + i];
      scales[group * (X_GROUP / UNIT) + part] = scale;
      sums[group * (X_GROUP / UNIT) + part] = scale * sum;
    }
    C::arrange(bytes, X_GROUP, codes + group * X_GROUP / COLUMNS * COLUMNS, group * X_GROUP % COLUMNS);
  }
}

// The scales or minimums of W, one for every `repeat` units of a row.
struct UnitScales {
  const void* values;
  int64_t groups, repeat, total;  // per row; units; of the whole matrix
  bool half;

  UnitScales(const Matrix& w, const void* values) : values(values), half(w.half) {
    const int64_t columns = std::min(w.group, w.inputs);
    groups = (w.inputs + columns - 1) / columns;
    repeat = (columns + UNIT - 1) / UNIT;
    total = w.outputs * groups;
  }

  // Of units `u` to `u + LANES` of a row. Those past the row have any value, because x is zero there.
  Vector read(int64_t row, int64_t u) const {
    const int64_t at = row * groups + u;
    if (repeat == 1 && at + LANES <= total)
      return half ? from_float16(load<Halves>((const uint16_t*)values + at)) : load<Vector>((const float*)values + at);
    if (groups == 1) return Vector{} + one(row);
    Vector v;
    for (int i = 0; i < LANES; i++) v[i] = one(std::min(row * groups + (u + i) / repeat, total - 1));
    return v;
  }

  float one(int64_t at) const {
    return half ? from_float16(Halves{((const uint16_t*)values)[at]})[0] : ((const float*)values)[at];
  }
};

struct Weight {
  const Matrix& w;
  UnitScales scales, minimums;

  explicit Weight(const Matrix& w) : w(w), scales(w, w.scales), minimums(w, w.minimums) {}
};

// The products of up to ROWS_AT_ONCE rows from `row` on, before `end`, with T tokens.
template <int T>
void tile(const Weight& weight, const Rounded& x, int64_t row, int64_t end, int64_t token, float* products, int64_t stride) {
  constexpr int STEPS = LANES / STEP_UNITS;  // whose scales are in one vector
  const Matrix& w = weight.w;
  const int64_t count = std::min<int64_t>(ROWS_AT_ONCE, end - row);
  const float zero = w.zero + C::OFFSET;
  Words index[STEPS];  // the unit of each lane
  for (int k = 0; k < STEPS; k++)
    for (int i = 0; i < LANES; i++) index[k][i] = k * STEP_UNITS + i / (LANES / STEP_UNITS);
  Vector sums[T][ROWS_AT_ONCE] = {};
  for (int64_t n = 0; n < count; n++) {
    const typename C::Row codes(w, row + n);
    Vector sum[T] = {};
    for (int64_t first = 0, u = 0; first < x.steps; first += STEPS, u += LANES) {
      const Vector scale = weight.scales.read(row + n, u);
      const Vector offset = (w.minimums ? weight.minimums.read(row + n, u) : Vector{}) - scale * zero;
      Vector both[T];
      for (int t = 0; t < T; t++) {
        const int64_t at = (token + t) * x.units + u;
        both[t] = scale * load<Vector>(x.scales + at);
        sum[t] += offset * load<Vector>(x.sums + at);
      }
#pragma GCC unroll 8
      for (int k = 0; k < STEPS; k++) {
        if (first + k >= x.steps) break;
        Words parts[C::PARTS];
        codes.read(first + k, parts);
        for (int t = 0; t < T; t++) {
          const char* inputs = x.codes + ((token + t) * x.steps + first + k) * COLUMNS;
          Ints dots = {};
          for (int j = 0; j < C::PARTS; j++) dots = dot(dots, parts[j], load<Words>(inputs + j * 4 * LANES));
          sum[t] += __builtin_convertvector(dots, Vector) * permute(both[t], index[k]);
        }
      }
    }
    for (int t = 0; t < T; t++) sums[t][n] = sum[t];
  }
  for (int t = 0; t < T; t++) {
    const Vector four = sum4(sums[t]);
    for (int64_t n = 0; n < count; n++) products[(token + t) * stride + n] = four[n];
  }
}

template <int... I>
void tiles(const Weight& w, const Rounded& x, int64_t row, int64_t end, int64_t token, int tokens, float* products,
           int64_t stride, std::integer_sequence<int, I...>) {
  using Tile = void (*)(const Weight&, const Rounded&, int64_t, int64_t, int64_t, float*, int64_t);
  static constexpr Tile by_tokens[] = {tile<I + 1>...};
  for (; row < end; row += ROWS_AT_ONCE, products += ROWS_AT_ONCE)
    by_tokens[tokens - 1](w, x, row, end, token, products, stride);
}

}  // namespace

// One thread's part of y = x W^T with its epilogue. Every thread rounds x for itself.
extern "C" int64_t linear_part(Linear* p, int threads) {
  const Weight weight(p->w);
  const int64_t steps = (p->w.inputs + COLUMNS - 1) / COLUMNS, stride = steps * COLUMNS;
  const int64_t units = (steps * STEP_UNITS + LANES - 1) / LANES * LANES;
  thread_local std::vector<Vector> prepared, codes;
  thread_local std::vector<float> scales, sums;
  Rounded x{steps, units, nullptr, nullptr, nullptr};
  const auto round_inputs = [&] {
    prepared.assign(p->tokens * stride / LANES, Vector{});  // aligned, and zeros after the inputs
    codes.resize(p->tokens * stride / sizeof(Vector));
    scales.assign(p->tokens * units, 0);
    sums.assign(p->tokens * units, 0);
    prepare(*p, stride, false, prepared.data());
    for (int64_t t = 0; t < p->tokens; t++)
      round_row((const float*)prepared.data() + t * stride, steps, (char*)codes.data() + t * stride,
                scales.data() + t * units, sums.data() + t * units);
    x = {steps, units, (const char*)codes.data(), scales.data(), sums.data()};
  };
  return by_chunks(*p, threads, round_inputs, [&](int64_t row, int64_t end, float* products, int64_t to_token) {
    for (int64_t token = 0; token < p->tokens; token += TOKENS)
      tiles(weight, x, row, end, token, std::min<int64_t>(TOKENS, p->tokens - token), products, to_token,
            std::make_integer_sequence<int, TOKENS>());
  });
}
