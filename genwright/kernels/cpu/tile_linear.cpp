// y = x W^T with weights in tiles of 16 rows: by integers, with rounded x, or by floats. Fused as fused_linear.cpp is. Bits
// depend only on the token and the row.

#include "amx.h"
#include "dots.h"
#include "linear.h"

#include <utility>

namespace {

struct Exact {
  static constexpr int TOKENS = 4;
  float x[COLUMNS], sums[GROUPS];
};

void convert_group(const float* from, int group, int64_t zero, Rounded& to) {
  Vector x[PARTS], sums = {};
  Ints codes[PARTS];
  for (int i = 0; i < PARTS; i++) x[i] = load<Vector>(from + i * LANES);
  const float scale = choose_scale(x, group, to), inverse = scale > SMALLEST_SCALE ? 1 / scale : 0;
  for (int i = 0; i < PARTS; i++) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
    const Vector rounded = multiply_add(x[i], all_lanes(inverse), all_lanes(12582912.0f));
    codes[i] = (Ints)rounded - 0x4B400000;
    sums += rounded - 12582912.0f;
  }
  write_codes(codes, group, to);
  const float sum = std::isnan(scale) ? 0 : fold_all<LANES>(sums)[0];  // an integer below 2^24
  to.scale[group] = scale;
  to.offset[group] = int32_t(DOT_ZERO - zero) * int32_t(sum);
  to.sums[group] = scale * sum;
}

void convert(const float* x, int64_t zero, Rounded& to) {
  for (int g = 0; g < GROUPS; g++) convert_group(x + g * (COLUMNS / GROUPS), g, zero, to);
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

// The products of T tokens' x and the codes q of a group, without the scales of W. `stored` are the codes again.
template <int T>
inline void group_products(const Words* q, const Words* stored, const Rounded* x, int group, Ints, Vector* products) {
  Ints sums[T];
  dots<T>(q, stored, x, group, sums);
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) products[t] = __builtin_convertvector(sums[t], Vector);
}

template <int T>
inline void group_products(const Words* q, const Words*, const Exact* x, int group, Ints zero, Vector* products) {
  for (int t = 0; t < T; t++) {
    Vector sum = {};
    for (int k = group * GROUP_WORDS; k < (group + 1) * GROUP_WORDS; k++)
      for (int j = 0; j < 4; j++) {
        const Vector codes = __builtin_convertvector((Ints)(q[k] >> (8 * j) & 255) - zero, Vector);
        sum = multiply_add(codes, all_lanes(x[t].x[4 * k + j]), sum);
      }
    products[t] = sum;
  }
}

inline Vector scaled(Vector scale, const Rounded& x, int group) { return scale * x.scale[group]; }
inline Vector scaled(Vector scale, const Exact&, int) { return scale; }

// Add the products of a group, scaled, to the sums of T tokens.
template <int T, class X>
inline void add_scaled(const Vector* products, Vector scale, Vector minimum, const X* x, int group, Vector* sums) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    sums[t] = multiply_add(products[t], scaled(scale, x[t], group), sums[t]);
    if (MINIMUMS) sums[t] = multiply_add(minimum, all_lanes(x[t].sums[group]), sums[t]);
  }
}

// The products of a tile's rows, before `end`, with T tokens; x [units, T].
template <int T, class X>
void tile(const Tiles& w, const X* x, int64_t row, int64_t end, float* y, int64_t stride) {
  const int64_t units = w.units(), number = row / ROWS;
  const Ints zero = Ints{} + int32_t(w.zero);
  constexpr int SIDE = T == 1 ? VECTORS : 1;  // vectors of rows side by side; with one token, memory is read in order
  for (int v = 0; v < VECTORS; v += SIDE) {
    Scales<SIDE> scales(w, number, v);
    Vector sums[SIDE][T] = {};
    for (int64_t first = 0; first < units; first += BLOCK_UNITS) {
      scales.enter(first / BLOCK_UNITS);
      const int64_t last = std::min<int64_t>(first + BLOCK_UNITS, units);
      for (int64_t unit = first; unit < last; unit++)
#pragma GCC unroll 4
        for (int i = 0; i < SIDE; i++) {
          const int64_t place = number * units + unit;
          Words q[WORDS], copy[WORDS];
          unpack<T == 1>(w, place, v + i, q);
          const Words* stored = store(q, w.codes + place * STORED * ROWS, copy);
#pragma GCC unroll 2
          for (int g = 0; g < GROUPS; g++) {
            const Vector scale = scales.scale(unit, g, i);
            const Vector minimum = MINIMUMS ? scales.minimum(unit, g, i) : Vector{};
            Vector products[T];
            group_products<T>(q, stored, x + unit * T, g, zero, products);
            add_scaled<T>(products, scale, minimum, x + unit * T, g, sums[i]);
          }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < SIDE * T; i++) {
      const Vector sum = sums[i / T][i % T];  // a copy, so that sums can be in registers
      const int64_t lane = (v + i / T) * LANES, count = std::max<int64_t>(end - row - lane, 0);
      write(sum, y + i % T * stride + lane, 0, count, false);
    }
  }
}

template <class X, int... I>
void tiles(const Tiles& w, const X* x, int64_t row, int64_t end, int tokens, float* products, int64_t stride,
           std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Tiles&, const X*, int64_t, int64_t, float*, int64_t) = {tile<I + 1, X>...};
  for (; row < end; row += ROWS, products += ROWS) by_tokens[tokens - 1](w, x, row, end, products, stride);
}

#ifdef AMX

constexpr int TOKENS = Rounded::TOKENS;  // that AMX multiplies at a time
constexpr int BATCH = 4 * TOKENS;        // tokens for which rows of W are unpacked once; their x stays in the cache
constexpr int STRETCH = 8;               // units whose sums stay in the cache; they share factors

// The codes of a tile's rows [units, WORDS].
const Words* unpacked(const Tiles& w, int64_t number) {
  const int64_t units = w.units(), first = number * units;
  if (BITS == 8) return (const Words*)w.codes + first * WORDS;
  thread_local std::vector<Words> codes;
  codes.resize(std::max<size_t>(codes.size(), units * WORDS));
  for (int64_t unit = 0; unit < units; unit++) unpack<false>(w, first + unit, 0, codes.data() + unit * WORDS);
  return codes.data();
}

// As `tile`, with TOKENS tokens. q: the rows' codes.
void amx_tile(const Tiles& w, const Words* q, const Rounded* x, int64_t row, int64_t end, float* y, int64_t stride) {
  const int64_t units = w.units();
  Scales<1> scales(w, row / ROWS, 0);
  Vector sums[TOKENS] = {};
  TileSums integers[STRETCH][GROUPS];
  for (int64_t first = 0; first < units; first += STRETCH) {
    const int64_t count = std::min<int64_t>(STRETCH, units - first);
    tile_sums(q + first * WORDS, x + first * TOKENS, count, integers[0]);
    scales.enter(first / BLOCK_UNITS);
    for (int64_t i = 0; i < count; i++)
#pragma GCC unroll 2
      for (int g = 0; g < GROUPS; g++) {
        const Rounded* here = x + (first + i) * TOKENS;
        const Vector minimum = MINIMUMS ? scales.minimum(first + i, g, 0) : Vector{};
        Vector products[TOKENS];
#pragma GCC unroll 8
        for (int t = 0; t < TOKENS; t++) {
          const Ints sum = (integers[i][g].high[t] << 8) + integers[i][g].low[t] + here[t].offset[g];
          products[t] = __builtin_convertvector(sum, Vector);
        }
        add_scaled<TOKENS>(products, scales.scale(first + i, g, 0), minimum, here, g, sums);
      }
  }
#pragma GCC unroll 8
  for (int t = 0; t < TOKENS; t++) {
    const Vector sum = sums[t];
    write(sum, y + t * stride, 0, end - row, false);
  }
}

// As `tiles`, with a number of tokens that is a multiple of TOKENS.
void amx_tiles(const Tiles& w, const Rounded* x, int64_t row, int64_t end, int64_t tokens, float* products,
               int64_t stride) {
  const TileRegisters registers;
  for (int64_t first = 0; first < tokens; first += BATCH)
    for (int64_t r = row; r < end; r += ROWS) {
      const Words* q = unpacked(w, r / ROWS);
      for (int64_t token = first; token < std::min(first + BATCH, tokens); token += TOKENS)
        amx_tile(w, q, x + token * w.units(), r, end, products + token * stride + r - row, stride);
    }
}

#endif

struct TileProduct : Product<Tiles> {  // `TileProduct` of tile_linear.py
  void* inputs;  // x as `convert_tokens` writes it, or null if every thread converts x for itself

  int64_t count_from(int64_t token, int64_t most) const { return std::min(most, tokens - token); }
};

// Convert x of up to X::TOKENS tokens to [units, tokens].
template <class X>
void convert_tokens(const TileProduct& p, int64_t token, X* to) {
  const int64_t units = p.w.units(), count = p.count_from(token, X::TOKENS);
  thread_local std::vector<Vector> prepared;
  prepared.assign(count * units * COLUMNS / LANES, Vector{});  // aligned, and zeros after the inputs
  prepare(p, token, token + count, units * COLUMNS, false, prepared.data());
  for (int64_t unit = 0; unit < units; unit++)
    for (int64_t t = 0; t < count; t++)
      convert((const float*)prepared.data() + (t * units + unit) * COLUMNS, p.w.zero, *to++);
}

template <class X>
int64_t convert_part(TileProduct& p) {
  int64_t finished = 0;
  for (int64_t token; (token = p.progress.take(X::TOKENS, p.tokens)) >= 0; finished += p.count_from(token, X::TOKENS))
    convert_tokens(p, token, (X*)p.inputs + token * p.w.units());
  return finished;
}

template <class X, bool BY_AMX = false>
int64_t multiply(TileProduct& p, int threads) {
  const Tiles& w = p.w;
  const int64_t units = w.units();
  thread_local std::vector<X> own;
  const X* x = (const X*)p.inputs;
  const auto convert_inputs = [&] {
    if (x) return;
    own.resize(std::max<size_t>(own.size(), p.tokens * units));
    x = own.data();
    for (int64_t token = 0; token < p.tokens; token += X::TOKENS) convert_tokens(p, token, own.data() + token * units);
  };
  return by_chunks(p, threads, convert_inputs, [&](int64_t row, int64_t end, float* products, int64_t to_token) {
    int64_t token = 0;
#ifdef AMX
    if constexpr (BY_AMX) {
      token = p.tokens / TOKENS * TOKENS;
      amx_tiles(w, x, row, end, token, products, to_token);
    }
#endif
    for (; token < p.tokens; token += X::TOKENS)
      tiles(w, x + token * units, row, end, p.count_from(token, X::TOKENS), products + token * to_token, to_token,
            std::make_integer_sequence<int, X::TOKENS>());
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
    unpack<true>(w, number * units + unit, v, q);
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

// One thread's part of converting x of many tokens, which all threads then share.
extern "C" int64_t rounded_inputs_part(TileProduct* p, int) { return convert_part<Rounded>(*p); }
extern "C" int64_t exact_inputs_part(TileProduct* p, int) { return convert_part<Exact>(*p); }
extern "C" int64_t input_bytes(bool exact) { return exact ? sizeof(Exact) : sizeof(Rounded); }  // of a token in a unit

// One thread's part of y = x W^T with its epilogue.
extern "C" int64_t rounded_part(TileProduct* p, int threads) { return multiply<Rounded>(*p, threads); }
extern "C" int64_t exact_part(TileProduct* p, int threads) { return multiply<Exact>(*p, threads); }
#ifdef AMX
extern "C" int64_t amx_part(TileProduct* p, int threads) { return multiply<Rounded, true>(*p, threads); }
#endif
