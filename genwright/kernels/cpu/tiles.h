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

// The bytes of a table of 16 at each of the bytes of `index`.
inline Words look_up(const uint8_t* table, Words index) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
  return (Words)_mm512_shuffle_epi8(all, (__m512i)index);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return (Words)_mm256_shuffle_epi8(all, (__m256i)index);
#elif defined(__aarch64__)
  return (Words)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)index);
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
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(&bytes)));
#else
  return __builtin_convertvector(__builtin_convertvector(to_shorts(bytes), Ints), Vector);
#endif
}

// The scales and minimums of a tile's rows, in SIDE vectors from number v on.
template <int SIDE>
struct Scales {
  const Tiles& w;
  int64_t at, block;  // the first scale and factor
  Vector factor[SIDE], minimum_factor[SIDE];

  Scales(const Tiles& w, int64_t tile, int v)
      : w(w), at(tile * w.groups() * ROWS + v * LANES), block(tile * w.blocks() * ROWS + v * LANES) {}

  void enter(int64_t number) {  // of the block whose units come next
    if constexpr (SCALES == FACTORS)
      for (int i = 0; i < SIDE; i++) {
        factor[i] = half_at(w.factors, block + number * ROWS + i * LANES);
        if constexpr (MINIMUMS) minimum_factor[i] = half_at(w.minimum_factors, block + number * ROWS + i * LANES);
      }
  }
  int64_t place(int64_t unit, int group, int i) const {
    return at + (GROUPS > 1 ? unit * GROUPS + group : unit >> w.shift) * ROWS + i * LANES;
  }
  Vector scale(int64_t unit, int group, int i) const {
    const Vector scale = scale_at(w.scales, place(unit, group, i));
    return SCALES == FACTORS ? scale * factor[i] : scale;
  }
  Vector minimum(int64_t unit, int group, int i) const {
    const Vector minimum = scale_at(w.minimums, place(unit, group, i));
    return SCALES == FACTORS ? minimum * minimum_factor[i] : minimum;
  }
};

}  // namespace
