// y = x W^T with weights in tiles of 16 rows: by integers, with rounded x, or by floats. Fused as fused_linear.cpp is. Bits
// depend only on the token and the row.
//
// x has a scale for every group, 32 or 16 columns. Its codes are signed bytes, but the few words of four columns that have
// the largest numbers have two bytes, so that outliers do not make the codes of their neighbours coarse. Without VNNI all
// words have two bytes. A tile's rows are multiplied by the low bytes, and by the high ones of the wide words.

#include "tiles.h"

#include "linear.h"

#include <utility>

namespace {

struct Rounded {                  // a token's x in the columns of a unit
  static constexpr int TOKENS = LANES == 16 ? 8 : 4;  // at a time
  uint32_t low[WORDS];
  uint32_t high[GROUPS][WIDE];    // of the wide words
  uint16_t place[GROUPS][WIDE];   // byte offset of q of the wide words
  int32_t offset[GROUPS];         // -zero times the sum of a group's codes
  float scale[GROUPS], sums[GROUPS];  // sums of the rounded x
};

struct Exact {
  static constexpr int TOKENS = 4;
  float x[COLUMNS], sums[GROUPS];
};

inline Words larger(Words a, Words b) { return a > b ? a : b; }

// Choose the wide words of a group. Returns the bits of the largest magnitudes, of all numbers and of those in other words;
// the first are those of a NaN or an infinity if there is one.
inline std::pair<uint32_t, uint32_t> choose_wide(const Vector* x, uint16_t* wide) {
  constexpr int PARTS = COLUMNS / GROUPS / LANES;
  Words lane, part, keys = {};
  for (int i = 0; i < LANES; i++) lane[i] = i;
  part = lane % PARTS;
  const auto exchanged = [&](Words v, int step) { return (Words)permute((Vector)v, lane ^ step); };
  for (int i = 0; i < PARTS; i++) {
    Words most = (Words)x[i] & 0x7FFFFFFFu;
    for (int step = 1; step < 4; step *= 2) most = larger(most, exchanged(most, step));  // of each word
    keys = part == i ? most : keys;
  }
  keys = (keys & ~7u) | (part * (LANES / 4) + lane / 4);  // the lowest bits of a key are the word's number
  constexpr bool ALL = WIDE == GROUP_WORDS;
  uint32_t found[ALL ? 1 : WIDE + 1];  // the largest keys
  for (uint32_t& key : found) {
    Words most = keys;
    for (int step = 1; step < LANES; step *= 2)
      if (step < PARTS || step >= 4) most = larger(most, exchanged(most, step));  // other lanes have the same key
    keys = keys == most ? 0 : keys;
    key = most[0];
  }
  for (int i = 0; i < WIDE; i++) wide[i] = ALL ? i : found[i] & 7;
  return {found[0], ALL ? 0 : found[WIDE]};
}

void convert_group(const float* from, int group, int64_t zero, Rounded& to) {
  constexpr int PARTS = COLUMNS / GROUPS / LANES;
  Vector x[PARTS], sums = {};
  for (int i = 0; i < PARTS; i++) x[i] = load<Vector>(from + i * LANES);
  const auto [bits, narrow_bits] = choose_wide(x, to.place[group]);
  float most, narrow;
  memcpy(&most, &bits, sizeof most);
  memcpy(&narrow, &narrow_bits, sizeof narrow);
  const float scale = std::max(narrow * (1.0f / LARGEST_PART), most * (1.0f / LARGEST_CODE));
  const float inverse = scale > 1e-30f ? 1 / scale : 0;
  uint32_t high_words[GROUP_WORDS];
  for (int i = 0; i < PARTS; i++) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, which is then in the low bits.
    const Vector rounded = x[i] * inverse + 12582912.0f;
    const Ints code = (Ints)rounded - 0x4B400000, high = (code + (1 << (LOW_BITS - 1))) >> LOW_BITS;
    const Bytes highs = __builtin_convertvector(high, Bytes);
    const Bytes lows = __builtin_convertvector(code - (high << LOW_BITS), Bytes);
    memcpy((char*)high_words + i * LANES, &highs, sizeof highs);
    memcpy((char*)(to.low + group * GROUP_WORDS) + i * LANES, &lows, sizeof lows);
    sums += rounded - 12582912.0f;
  }
  for (int i = 0; i < WIDE; i++) {
    uint16_t& place = to.place[group][i];
    to.high[group][i] = high_words[place];
    place = (group * GROUP_WORDS + place) * sizeof(Words);
  }
  const float sum = fold_all<LANES>(sums)[0];  // an integer below 2^24
  to.scale[group] = bits < 0x7F800000 ? scale : NAN;
  to.offset[group] = -int32_t(zero) * int32_t(sum);
  to.sums[group] = to.scale[group] * sum;
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

// The products of x and the codes q of a group, without the scales of W. `stored` are the codes again.
inline Vector group_product(const Words* q, const Words* stored, const Rounded& x, int group, Ints) {
  Ints high = {}, low = Ints{} + x.offset[group];
#pragma GCC unroll 8
  for (int k = 0; k < GROUP_WORDS; k++) {
    const int word = group * GROUP_WORDS + k;
    low = dot(low, q[word], Words{} + x.low[word]);
  }
#pragma GCC unroll 8
  for (int k = 0; k < WIDE; k++)
    high = dot(high, load<Words>((const char*)stored + x.place[group][k]), Words{} + x.high[group][k]);
  return __builtin_convertvector((high << LOW_BITS) + low, Vector);
}

inline Vector group_product(const Words* q, const Words*, const Exact& x, int group, Ints zero) {
  Vector sum = {};
  for (int k = group * WORDS / GROUPS; k < (group + 1) * WORDS / GROUPS; k++)
    for (int j = 0; j < 4; j++)
      sum += __builtin_convertvector((Ints)(q[k] >> (8 * j) & 255) - zero, Vector) * x.x[4 * k + j];
  return sum;
}

inline Vector scaled(Vector scale, const Rounded& x, int group) { return scale * x.scale[group]; }
inline Vector scaled(Vector scale, const Exact&, int) { return scale; }

// The products of a tile's rows, before `end`, with T tokens; x [units, T].
template <int T, class X>
void tile(const Tiles& w, const X* x, int64_t row, int64_t end, float* products, int64_t stride) {
  const int64_t units = w.units(), number = row / ROWS;
  const Ints zero = Ints{} + int32_t(w.zero);
  for (int v = 0; v < VECTORS; v++) {
    Scales scales(w, number, v);
    Vector sums[T] = {};
    for (int64_t first = 0; first < units; first += BLOCK_UNITS) {
      scales.enter(first / BLOCK_UNITS);
      const int64_t last = std::min<int64_t>(first + BLOCK_UNITS, units);
      for (int64_t unit = first; unit < last; unit++) {
        Words q[WORDS];
        unpack<T == 1>(w, number * units + unit, v, q);
        Words copy[WORDS];
        const Words* stored = copy;  // the codes in memory, where a word is found by its number
        if constexpr (BITS == 8 && VECTORS == 1) {
          stored = (const Words*)(w.codes + (number * units + unit) * STORED * ROWS);
        } else {
          memcpy(copy, q, sizeof copy);
          asm("" : "+m"(copy));
        }
#pragma GCC unroll 2
        for (int g = 0; g < GROUPS; g++) {
          const Vector scale = scales.scale(unit, g);
          const Vector minimum = MINIMUMS ? scales.minimum(unit, g) : Vector{};
#pragma GCC unroll 8
          for (int t = 0; t < T; t++) {
            const X& here = x[unit * T + t];
            sums[t] += group_product(q, stored, here, g, zero) * scaled(scale, here, g);
            if (MINIMUMS) sums[t] += minimum * here.sums[g];
          }
        }
      }
    }
    const int64_t count = std::min<int64_t>(LANES, end - row - v * LANES);
    for (int t = 0; t < T && count > 0; t++) memcpy(products + t * stride + v * LANES, &sums[t], count * sizeof(float));
  }
}

template <class X, int... I>
void tiles(const Tiles& w, const X* x, int64_t row, int64_t end, int tokens, float* products, int64_t stride,
           std::integer_sequence<int, I...>) {
  static constexpr void (*by_tokens[])(const Tiles&, const X*, int64_t, int64_t, float*, int64_t) = {tile<I + 1, X>...};
  for (; row < end; row += ROWS, products += ROWS) by_tokens[tokens - 1](w, x, row, end, products, stride);
}

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

template <class X>
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
    for (int64_t token = 0; token < p.tokens; token += X::TOKENS)
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
  Scales scales(w, number, v);
  for (int64_t unit = 0; unit < units; unit++) {
    scales.enter(unit / BLOCK_UNITS);
    Words q[WORDS];
    unpack<true>(w, number * units + unit, v, q);
    float values[COLUMNS];
    for (int g = 0; g < GROUPS; g++) {
      const float scale = scales.scale(unit, g)[lane], minimum = MINIMUMS ? scales.minimum(unit, g)[lane] : 0;
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
