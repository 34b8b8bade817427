// Rounded inputs, and their products with the codes of W by the instructions that the processor has.
//
// x has a scale for every group, 32 or 16 columns. Most instructions multiply bytes. The codes of x are then signed bytes,
// but the WIDE words of four columns that have the largest numbers have two bytes, high * 256 + low, so that outliers do
// not make the codes of their neighbours coarse. AVX2 and AVX-512 without VNNI multiply 16 bits, which all codes have.

#pragma once

#include "tiles.h"

#include <cmath>

namespace {

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define VNNI
#if defined(__AVX512VNNI__) && (defined(__AMX_INT8__) || defined(__AMXINT8__))  // GCC, Clang
#define AMX  // for many tokens; amx.h
#endif
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define MADD
#elif defined(__ARM_FEATURE_MATMUL_INT8)
typedef uint8x16_t DotCodes;
#define DOT vusdotq_s32
#define DOT_LANE vusdotq_laneq_s32
#elif defined(__ARM_FEATURE_DOTPROD)
typedef int8x16_t DotCodes;
#define DOT vdotq_s32
#define DOT_LANE vdotq_laneq_s32
#endif

#if defined(__aarch64__) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int DOT_ZERO = BITS == 8 || TABLE ? 128 : 0;  // because these instructions read codes with a sign
#else
constexpr int DOT_ZERO = 0;
#endif

constexpr int PARTS = COLUMNS / GROUPS / LANES;  // vectors of x in a group
constexpr float LARGEST_CODE = 127 * 256 + 127;  // of x
constexpr float SMALLEST_SCALE = 1e-30f;

inline Words larger(Words a, Words b) { return a > b ? a : b; }

// The largest of each run of COUNT lanes, in all of them. Of every four lanes, those after the first DISTINCT repeat them.
template <int COUNT, int DISTINCT = 4>
inline Words largest(Words v) {
  Words lane;
  for (int i = 0; i < LANES; i++) lane[i] = i;
  for (int step = 1; step < COUNT; step *= 2)
    if (step < DISTINCT || step >= 4) v = larger(v, (Words)permute((Vector)v, lane ^ step));
  return v;
}

inline float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// For each way to multiply: `Rounded`, a token's x in the columns of a unit; `choose_scale` of a group, NaN if one of its
// numbers is not finite; `write_codes` of a group; `store` codes q of W; `dots`, the sums of the products of q and T
// tokens' x in a group.
#ifdef MADD

struct Rounded {
  static constexpr int TOKENS = 8;   // at a time
  uint32_t even[WORDS], odd[WORDS];  // columns 0 and 2 of four, and 1 and 3
  int32_t offset[GROUPS];            // -zero times the sum of a group's codes
  float scale[GROUPS], sums[GROUPS];  // sums of the rounded x
};

inline float choose_scale(const Vector* x, int, Rounded&) {
  Words most = {};
  for (int i = 0; i < PARTS; i++) most = larger(most, (Words)x[i] & 0x7FFFFFFFu);
  const uint32_t bits = largest<LANES>(most)[0];
  return bits < 0x7F800000 ? as_float(bits) / LARGEST_CODE : NAN;
}

typedef int16_t Pairs __attribute__((vector_size(4 * LANES)));
typedef uint16_t UnsignedPairs __attribute__((vector_size(4 * LANES)));

inline void write_codes(const Ints* codes, int group, Rounded& to) {
  int16_t even[PARTS * LANES / 2], odd[PARTS * LANES / 2];
  for (int i = 0; i < PARTS * LANES / 2; i++) {
    const Ints& part = codes[2 * i / LANES];
    even[i] = part[2 * i % LANES], odd[i] = part[2 * i % LANES + 1];
  }
  memcpy(to.even + group * GROUP_WORDS, even, sizeof even);
  memcpy(to.odd + group * GROUP_WORDS, odd, sizeof odd);
}

inline Ints multiply_pairs(Pairs a, Words b) {
#ifdef __AVX512F__
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

inline const Words* store(const Words*, const uint32_t*, Words (&)[WORDS]) { return nullptr; }

// It would take as many products of bytes, and more additions.
template <int T>
inline void dots(const Words* q, const Words*, const Rounded* x, int group, Ints* sums) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) sums[t] = Ints{} + x[t].offset[group];
#pragma GCC unroll 8
  for (int k = group * GROUP_WORDS; k < (group + 1) * GROUP_WORDS; k++) {
    const Pairs even = (Pairs)(q[k] & 0x00FF00FFu), odd = (Pairs)((UnsignedPairs)q[k] >> 8);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
      sums[t] += multiply_pairs(odd, Words{} + x[t].odd[k]);
      sums[t] += multiply_pairs(even, Words{} + x[t].even[k]);
      asm("" : "+x"(sums[t]));  // otherwise GCC adds all products at the end, and has no registers for them
    }
  }
}

#else

constexpr int WIDE = 2 / GROUPS;

struct Rounded {
  static constexpr int TOKENS = 8;
  uint32_t low[WORDS];
  uint32_t high[GROUPS][WIDE];   // of the wide words
  uint16_t place[GROUPS][WIDE];  // byte offset of q of the wide words
#ifdef AMX
  uint32_t all_high[WORDS];      // of all words: zeros but for the wide ones
#endif
  int32_t offset[GROUPS];        // DOT_ZERO - zero times the sum of a group's codes
  float scale[GROUPS], sums[GROUPS];
};

// Chooses the wide words too. A key is the bits of the largest magnitude in a word, but for the last ones, which are the
// word's number.
inline float choose_scale(const Vector* x, int group, Rounded& to) {
  uint32_t found[WIDE + 1] = {};
#ifdef __aarch64__  // a vector holds one word
  for (int i = 0; i < PARTS; i++) {
    uint32_t key = (vmaxvq_u32((uint32x4_t)x[i] & 0x7FFFFFFFu) & ~7u) | i;
    for (uint32_t& each : found)
      if (key > each) std::swap(key, each);
  }
#else
  Words lane, keys = {};
  for (int i = 0; i < LANES; i++) lane[i] = i;
  const Words part = lane % PARTS;
  for (int i = 0; i < PARTS; i++) keys = part == i ? largest<4>((Words)x[i] & 0x7FFFFFFFu) : keys;
  keys = (keys & ~7u) | (part * (LANES / 4) + lane / 4);
  for (uint32_t& key : found) {
    const Words most = largest<LANES, PARTS>(keys);
    keys = keys == most ? 0 : keys;
    key = most[0];
  }
#endif
  for (int i = 0; i < WIDE; i++) to.place[group][i] = (group * GROUP_WORDS + (found[i] & 7)) * sizeof(Words);
  const float scale = std::max(as_float(found[WIDE]) * (1.0f / 127), as_float(found[0]) * (1.0f / LARGEST_CODE));
  return found[0] < 0x7F800000 ? scale : NAN;
}

inline void write_codes(const Ints* codes, int group, Rounded& to) {
  uint32_t high_words[WORDS];
  for (int i = 0; i < PARTS; i++) {
    const Ints high = (codes[i] + 128) >> 8;
    const Bytes highs = to_bytes(high), lows = to_bytes(codes[i] - (high << 8));
    const int64_t at = group * GROUP_WORDS * sizeof(uint32_t) + i * LANES;
    memcpy((char*)high_words + at, &highs, sizeof highs);
    memcpy((char*)to.low + at, &lows, sizeof lows);
  }
#ifdef AMX
  memcpy(to.all_high + group * GROUP_WORDS, high_words + group * GROUP_WORDS, GROUP_WORDS * sizeof(uint32_t));
#endif
  for (int i = 0; i < WIDE; i++) to.high[group][i] = high_words[to.place[group][i] / sizeof(Words)];
}

// sums + the dot products of four bytes of `codes`, minus DOT_ZERO, and four signed ones of x in each lane.
inline Ints dot(Ints sums, Words codes, Words x) {
  if (DOT_ZERO) codes ^= DOT_ZERO * 0x01010101u;
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
#elif defined(VNNI)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)x);
#elif defined(DOT)
  return (Ints)DOT((int32x4_t)sums, (DotCodes)codes, (int8x16_t)x);
#elif defined(__aarch64__)
  const int8x16_t q = (int8x16_t)codes, y = (int8x16_t)x;
  const int16x8_t first = vmull_s8(vget_low_s8(q), vget_low_s8(y)), second = vmull_high_s8(q, y);
  if (!DOT_ZERO) return (Ints)vpadalq_s16((int32x4_t)sums, vpaddq_s16(first, second));  // codes are below 64
  return sums + (Ints)vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second));
#else
  for (int j = 0; j < 4; j++) sums += (Ints)(codes >> (8 * j) & 255) * ((Ints)(x << (24 - 8 * j)) >> 24);
  return sums;
#endif
}

// The same with word k of x in every lane.
inline Ints dot(Ints sums, Words codes, const uint32_t* x, int k) {
#ifdef DOT_LANE
  if (DOT_ZERO) codes ^= DOT_ZERO * 0x01010101u;
  const int8x16_t four = vld1q_s8((const int8_t*)(x + k / 4 * 4));
  switch (k % 4) {
    case 0: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 0);
    case 1: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 1);
    case 2: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 2);
    default: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 3);
  }
#else
  return dot(sums, codes, Words{} + x[k]);
#endif
}

// The place of q in memory, where a word is found by its number: that of `codes`, the unit's, or else of a copy.
inline const Words* store(const Words* q, const uint32_t* codes, Words (&copy)[WORDS]) {
  if (BITS == 8 && VECTORS == 1) return (const Words*)codes;
  memcpy(copy, q, sizeof copy);
  asm("" : "+m"(copy));
  return copy;
}

template <int T>
inline void dots(const Words* q, const Words* stored, const Rounded* x, int group, Ints* sums) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    Ints high = {}, low = Ints{} + x[t].offset[group];
#pragma GCC unroll 8
    for (int k = 0; k < GROUP_WORDS; k++) {
      const int word = group * GROUP_WORDS + k;
      low = dot(low, q[word], x[t].low, word);
    }
#pragma GCC unroll 2
    for (int k = 0; k < WIDE; k++)
      high = dot(high, load<Words>((const char*)stored + x[t].place[group][k]), Words{} + x[t].high[group][k]);
    sums[t] = (high << 8) + low;
  }
}

#endif

}  // namespace
