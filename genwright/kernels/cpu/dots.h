// Products of the integer codes of W and of rounded inputs, by the instructions that the processor has.
//
// A code of x has 16 bits. Most instructions multiply bytes, so it is split: high * 256 + low, both with a sign.

#pragma once

#include "tiles.h"

namespace {

constexpr float LARGEST_CODE = 127 * 256 + 127;  // of x

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
#define VNNI
#elif defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define MADD
#elif defined(__ARM_FEATURE_MATMUL_INT8)
typedef uint8x16_t DotCodes;
#define DOT_LANE vusdotq_laneq_s32
#elif defined(__ARM_FEATURE_DOTPROD)
typedef int8x16_t DotCodes;
#define DOT_LANE vdotq_laneq_s32
#endif

#if defined(__aarch64__) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int DOT_ZERO = BITS == 8 || TABLE ? 128 : 0;  // because these instructions read codes with a sign
#else
constexpr int DOT_ZERO = 0;
#endif

struct Rounded {                      // a token's x in the columns of a unit
  static constexpr int TOKENS = 8;    // at a time
  uint32_t high[WORDS], low[WORDS];   // of four columns; with MADD, whole codes of columns 1 and 3, and of 0 and 2
  int32_t offset[GROUPS];             // DOT_ZERO - zero times the sum of a group's codes
  float scale, sums[GROUPS];          // of the rounded x
};

// `write_codes` stores x's codes in LANES columns. `dots` sums the products of the codes of a group and of T tokens' x,
// [T, stride].
#ifdef MADD

typedef int16_t Pairs __attribute__((vector_size(4 * LANES)));
typedef uint16_t UnsignedPairs __attribute__((vector_size(4 * LANES)));

inline void write_codes(Ints code, int column, Rounded& to) {
  int16_t even[LANES / 2], odd[LANES / 2];
  for (int i = 0; i < LANES / 2; i++) even[i] = code[2 * i], odd[i] = code[2 * i + 1];
  memcpy((char*)to.low + column, even, sizeof even);
  memcpy((char*)to.high + column, odd, sizeof odd);
}

inline Ints multiply_pairs(Pairs a, Words b) {
#ifdef __AVX512F__
  return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
  return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

// Codes of 16 bits, two columns at a time. It would take as many products of bytes, and more additions.
template <int T>
inline void dots(const Words* q, const Rounded* x, int64_t stride, int group, Ints* sums) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) sums[t] = Ints{} + x[t * stride].offset[group];
#pragma GCC unroll 8
  for (int k = group * GROUP_WORDS; k < (group + 1) * GROUP_WORDS; k++) {
    const Pairs even = (Pairs)(q[k] & 0x00FF00FFu), odd = (Pairs)((UnsignedPairs)q[k] >> 8);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) {
      sums[t] += multiply_pairs(odd, Words{} + x[t * stride].high[k]);
      sums[t] += multiply_pairs(even, Words{} + x[t * stride].low[k]);
      asm("" : "+x"(sums[t]));  // otherwise GCC adds all products at the end, and has no registers for them
    }
  }
}

#else

inline void write_codes(Ints code, int column, Rounded& to) {
  const Ints high = (code + 128) >> 8;
  const Bytes highs = to_bytes(high), lows = to_bytes(code - (high << 8));
  memcpy((char*)to.high + column, &highs, sizeof highs);
  memcpy((char*)to.low + column, &lows, sizeof lows);
}

// sums + the dot products of four bytes of `codes`, minus DOT_ZERO, in each lane and four signed ones, word k of x.
inline Ints dot(Ints sums, Words codes, const uint32_t* x, int k) {
  if (DOT_ZERO) codes ^= DOT_ZERO * 0x01010101u;
#if defined(DOT_LANE)
  const int8x16_t four = vld1q_s8((const int8_t*)(x + k / 4 * 4));
  switch (k % 4) {
    case 0: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 0);
    case 1: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 1);
    case 2: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 2);
    default: return (Ints)DOT_LANE((int32x4_t)sums, (DotCodes)codes, four, 3);
  }
#else
  const Words word = Words{} + x[k];
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)word);
#elif defined(VNNI)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)word);
#elif defined(__aarch64__)
  const int8x16_t q = (int8x16_t)codes, y = (int8x16_t)word;
  const int16x8_t first = vmull_s8(vget_low_s8(q), vget_low_s8(y)), second = vmull_high_s8(q, y);
  if (!DOT_ZERO) return (Ints)vpadalq_s16((int32x4_t)sums, vpaddq_s16(first, second));  // codes are below 64
  return sums + (Ints)vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second));
#else
  for (int j = 0; j < 4; j++) sums += (Ints)(codes >> (8 * j) & 255) * ((Ints)(word << (24 - 8 * j)) >> 24);
  return sums;
#endif
#endif
}

template <int T>
inline void dots(const Words* q, const Rounded* x, int64_t stride, int group, Ints* sums) {
#pragma GCC unroll 8
  for (int t = 0; t < T; t++) {
    const Rounded& here = x[t * stride];
    Ints high = {}, low = Ints{} + here.offset[group];
#pragma GCC unroll 8
    for (int k = group * GROUP_WORDS; k < (group + 1) * GROUP_WORDS; k++) {
      high = dot(high, q[k], here.high, k);
      low = dot(low, q[k], here.low, k);
    }
    sums[t] = (high << 8) + low;
  }
}

#endif

}  // namespace
