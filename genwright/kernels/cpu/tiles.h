// Packed weights in tiles of 16 rows, the layout of quant/tiles.py, and how they are read.
//
// BITS, TABLE, SCALES, MINIMUMS and GROUP are compiler flags. Codes have no sign; the zero is subtracted later.

#pragma once

#include "vectors.h"

namespace {

enum ScaleType { FLOATS, HALVES, FACTORS };  // float32; float16; int8 times a float16 factor for every BLOCK columns

constexpr int ROWS = 16, COLUMNS = 32;    // of a unit
constexpr int WORDS = COLUMNS / 4;        // of a row in a unit, four codes each
constexpr int VECTORS = ROWS / LANES;     // that hold a word of each row
constexpr int GROUPS = COLUMNS / GROUP;   // in a unit that have scales of their own
constexpr int GROUP_WORDS = WORDS / GROUPS;
constexpr int BLOCK_UNITS = SCALES == FACTORS ? 8 : 1 << 30;
constexpr int STORED = BITS == 8 ? 8 : 4;                     // words of a row's codes in a unit
constexpr int HIGH = BITS == 6 ? 2 : BITS == 5 ? 1 : 0;       // words of the bits above the fourth
constexpr int AHEAD = 8;  // units to prefetch: on an EPYC core, Q6_K is read 15 % faster with it and Q4_K 3 % slower

struct Tiles {  // `Tiles` of tile_linear.py
  const uint32_t *codes, *high;     // [tiles, units, STORED or HIGH, ROWS]
  const void *scales, *minimums;    // [tiles, groups, ROWS]
  const uint16_t *factors, *minimum_factors;  // [tiles, blocks, ROWS]
  const uint8_t* table;             // [16], or null
  int64_t outputs, inputs, row_bytes;
  int64_t shift;                    // 2^shift units share a scale
  int64_t zero;

  int64_t units() const { return (inputs + COLUMNS - 1) / COLUMNS; }
  int64_t groups() const { return GROUPS > 1 ? units() * GROUPS : ((units() - 1) >> shift) + 1; }
  int64_t blocks() const { return (units() + BLOCK_UNITS - 1) / BLOCK_UNITS; }
};

// sums + the dot products of four unsigned bytes of `codes` and four signed ones of `x` in each lane. Without VNNI, sums
// of two products must stay below 2^15.
inline Ints dot(Ints sums, Words codes, Words x) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
#elif defined(__AVX512BW__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)codes, (__m512i)x);
  return sums + (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)x);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
  return sums + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  for (int j = 0; j < 4; j++) sums += (Ints)(codes >> (8 * j) & 255) * ((Ints)(x << (24 - 8 * j)) >> 24);
  return sums;
#endif
}

// Codes of x are high * 2^LOW_BITS + low. Only the WIDE words of a group with the largest inputs have a high part.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
constexpr int LOW_BITS = 8, WIDE = 2 / GROUPS;
#else
constexpr int LOW_BITS = 7, WIDE = GROUP_WORDS;
#endif
constexpr int LARGEST_PART = LOW_BITS == 8 ? 127 : 63;
constexpr float LARGEST_CODE = (LARGEST_PART << LOW_BITS) + LARGEST_PART;

// The bytes of a table of 16 at each of the bytes of `index`.
inline Words look_up(const uint8_t* table, Words index) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
  return (Words)_mm512_shuffle_epi8(all, (__m512i)index);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return (Words)_mm256_shuffle_epi8(all, (__m256i)index);
#else
  for (int i = 0; i < LANES; i++) {
    uint32_t word = 0;
    for (int j = 0; j < 32; j += 8) word |= uint32_t(table[index[i] >> j & 15]) << j;
    index[i] = word;
  }
  return index;
#endif
}

// The codes of a unit, WORDS words of each of LANES rows; v: which rows of the tile. ONCE: they are not read again soon.
template <bool ONCE>
inline void unpack(const Tiles& w, int64_t unit, int v, Words* q) {
  const uint32_t* from = w.codes + unit * STORED * ROWS + v * LANES;
  for (int k = 0; k < STORED; k++) {
    Words words = load<Words>(from + k * ROWS);
    __builtin_prefetch(from + (k + AHEAD * STORED) * ROWS, 0, ONCE ? 0 : 3);
#ifdef __AVX512F__
    asm("" : "+v"(words));  // otherwise GCC loads it twice
#endif
    q[k] = BITS == 8 ? words : words & 0x0F0F0F0Fu;
    if constexpr (BITS < 8) q[k + 4] = words >> 4 & 0x0F0F0F0Fu;
  }
  if constexpr (HIGH > 0) {
    constexpr uint32_t mask = HIGH == 2 ? 0x30303030u : 0x10101010u;
    for (int k = 0; k < WORDS; k++) {
      const Words words = load<Words>(w.high + (unit * HIGH + k * HIGH / 8) * ROWS + v * LANES);
      const int shift = k * HIGH % 8 - 4;
      q[k] |= (shift < 0 ? words << -shift : words >> shift) & mask;
    }
  }
  if constexpr (TABLE)
    for (int k = 0; k < WORDS; k++) q[k] = look_up(w.table, q[k]);
}

inline Vector half_at(const uint16_t* from, int64_t at) { return from_float16(load<Halves>(from + at)); }

// LANES scales or minimums, without their factors.
inline Vector scale_at(const void* from, int64_t at) {
  if constexpr (SCALES == FLOATS) return load<Vector>((const float*)from + at);
  if constexpr (SCALES == HALVES) return half_at((const uint16_t*)from, at);
  const Bytes bytes = load<Bytes>((const int8_t*)from + at);
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes));
#else
  return __builtin_convertvector(bytes, Vector);
#endif
}

// The scales and minimums of LANES rows of a tile.
struct Scales {
  const Tiles& w;
  int64_t at, block;  // the tile's first scale and factor
  Vector factor, minimum_factor;

  Scales(const Tiles& w, int64_t tile, int v)
      : w(w), at(tile * w.groups() * ROWS + v * LANES), block(tile * w.blocks() * ROWS + v * LANES) {}

  void enter(int64_t number) {  // of the block whose units come next
    if constexpr (SCALES == FACTORS) {
      factor = half_at(w.factors, block + number * ROWS);
      if constexpr (MINIMUMS) minimum_factor = half_at(w.minimum_factors, block + number * ROWS);
    }
  }
  int64_t place(int64_t unit, int group) const {
    return at + (GROUPS > 1 ? unit * GROUPS + group : unit >> w.shift) * ROWS;
  }
  Vector scale(int64_t unit, int group) const {
    const Vector scale = scale_at(w.scales, place(unit, group));
    return SCALES == FACTORS ? scale * factor : scale;
  }
  Vector minimum(int64_t unit, int group) const {
    const Vector minimum = scale_at(w.minimums, place(unit, group));
    return SCALES == FACTORS ? minimum * minimum_factor : minimum;
  }
};

}  // namespace
