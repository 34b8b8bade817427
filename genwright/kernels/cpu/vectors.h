// Float vectors as wide as the processor's registers, sums across their lanes, and loads and stores of float32 and bf16.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__F16C__) || defined(__FMA__) || defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

// From the OpenMP runtime that torch has loaded. A second runtime would have its own threads, which spin while they wait.
extern "C" void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 8, REGISTERS = 16;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

template <class V>
inline V load(const void* from) {
  V v;
  memcpy(&v, from, sizeof v);
  return v;
}

// a b + c, rounded once where the processor can. The compiler is told to fuse nothing itself: it would fuse the same sum in one
// function and not in another (GCC avoids chains of them on AMD's Zen), and a product's bits would depend on the function.
inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

inline Vector all_lanes(float value) { return Vector{} + value; }

inline Vector from_float16(Halves h) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
  return (Vector)_mm256_cvtph_ps((__m128i)h);
#elif defined(__aarch64__)
  return (Vector)vcvt_f32_f16((float16x4_t)h);
#else
  Words w = __builtin_convertvector(h, Words);
  return (Vector)((w & 0x8000) << 16 | (w & 0x7FFF) << 13) * 0x1p112f;
#endif
}

// GCC for ARM converts vectors of four bytes one by one.
inline Shorts to_shorts(Bytes v) {
#if defined(__aarch64__) && !defined(__clang__)
  uint32_t word;
  memcpy(&word, &v, sizeof v);
  return (Shorts)vget_low_s16(vmovl_s8(vcreate_s8(word)));
#else
  return __builtin_convertvector(v, Shorts);
#endif
}

inline Bytes to_bytes(Ints v) {
#if defined(__aarch64__) && !defined(__clang__)
  const int16x4_t shorts = vmovn_s32((int32x4_t)v);
  const int8x8_t twice = vmovn_s16(vcombine_s16(shorts, shorts));
  return load<Bytes>(&twice);
#else
  return __builtin_convertvector(v, Bytes);
#endif
}

inline Vector permute(Vector v, Words index) {  // uses only the low bits of the index
#if defined(__AVX512F__)
  return (Vector)_mm512_permutexvar_ps((__m512i)index, (__m512)v);
#elif defined(__AVX2__)
  return (Vector)_mm256_permutevar8x32_ps((__m256)v, (__m256i)index);
#elif defined(__aarch64__)
  return (Vector)vqtbl1q_u8((uint8x16_t)v, (uint8x16_t)((index & 3) * 0x04040404u + 0x03020100u));
#else
  Vector result;
  for (int i = 0; i < LANES; i++) result[i] = v[index[i] % LANES];
  return result;
#endif
}

using Lanes = std::make_integer_sequence<int, LANES>;

// The source of lane i when a and b are folded: the first half of each group of SIZE lanes, a's groups before b's.
constexpr int source(int i, int size) {
  int lane = i % (LANES / 2), half = size / 2;
  return (i < LANES / 2 ? 0 : LANES) + lane / half * size + lane % half;
}

// Adds the second half of each group of SIZE lanes to the first.
template <int SIZE, int... I>
inline Vector fold(Vector a, Vector b, std::integer_sequence<int, I...>) {
#ifdef __clang__
  Vector first = __builtin_shufflevector(a, b, source(I, SIZE)...);
  return first + __builtin_shufflevector(a, b, (source(I, SIZE) + SIZE / 2)...);
#else
  Vector first = __builtin_shuffle(a, b, Words{source(I, SIZE)...});
  return first + __builtin_shuffle(a, b, Words{(source(I, SIZE) + SIZE / 2)...});
#endif
}

template <int SIZE>
inline Vector fold_all(Vector v) {
  if constexpr (SIZE == 1)
    return v;
  else
    return fold_all<SIZE / 2>(fold<SIZE>(v, v, Lanes()));
}

// The sums of four vectors' lanes, in the first four lanes.
inline Vector sum4(const Vector* v) {
  Vector ab = fold<LANES>(v[0], v[1], Lanes()), cd = fold<LANES>(v[2], v[3], Lanes());
  return fold_all<LANES / 4>(fold<LANES / 2>(ab, cd, Lanes()));
}

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

inline float largest_lane(Vector v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__aarch64__)
  return vmaxvq_f32((float32x4_t)v);
#else
  float most = v[0];
  for (int i = 1; i < LANES; i++) most = std::max(most, v[i]);
  return most;
#endif
}

// e^x for x <= 0, as in the Cephes library.
inline Vector exponential(Vector x) {
  x = larger(Vector{} - 87, x);  // keeps NaN
  const Vector n = multiply_add(x, all_lanes(1.44269504088896341f), all_lanes(12582912.0f)) - 12582912.0f;  // rounded
  x = multiply_add(n, all_lanes(2.12194440e-4f), multiply_add(n, all_lanes(-0.693359375f), x));
  Vector p = all_lanes(1.9875691500e-4f);
  for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = multiply_add(p, x, all_lanes(factor));
  return (multiply_add(p * x, x, x) + 1) * (Vector)((__builtin_convertvector(n, Ints) + 127) << 23);
}

struct Float32 {
  static constexpr int BYTES = 4 * LANES, PARTS = 1;
  static constexpr float UNIT = 1;  // factor by which the result of `part` is too small
  static constexpr int column(int lane, int) { return lane; }
  static inline Vector part(const char* from, int) { return load<Vector>(from); }
};

struct Bf16 {  // the upper half of a float32
  static constexpr int BYTES = 2 * LANES, PARTS = 1;
  static constexpr float UNIT = 1;
  static constexpr int column(int lane, int) { return lane; }
  static inline Vector part(const char* from, int) {
#ifdef __AVX512F__  // GCC compiles the generic form to eight instructions here
    return (Vector)((Words)_mm512_cvtepu16_epi32((__m256i)load<Halves>(from)) << 16);
#else
    return (Vector)(__builtin_convertvector(load<Halves>(from), Words) << 16);
#endif
  }
};

// Up to LANES values of a float32 or bf16 array, then zeros.
inline Vector read(const void* from, int64_t at, int64_t count, bool bf16) {
  if (count >= LANES) {
    const char* here = (const char*)from + at * (bf16 ? 2 : 4);
    return bf16 ? Bf16::part(here, 0) : Float32::part(here, 0);
  }
  char bytes[Float32::BYTES] = {};
  const int size = bf16 ? 2 : 4;
  memcpy(bytes, (const char*)from + at * size, std::min<int64_t>(count, LANES) * size);
  return bf16 ? Bf16::part(bytes, 0) : Float32::part(bytes, 0);
}

inline void write(Vector v, void* to, int64_t at, int64_t count, bool bf16) {
  const Halves halves = __builtin_convertvector((Words)v >> 16, Halves);
  const int size = bf16 ? 2 : 4;
  if (count >= LANES) {
    if (bf16)
      memcpy((char*)to + at * 2, &halves, sizeof halves);
    else
      memcpy((char*)to + at * 4, &v, sizeof v);
    return;
  }
  memcpy((char*)to + at * size, bf16 ? (const void*)&halves : &v, std::min<int64_t>(count, LANES) * size);
}

// Round to the nearest bf16, ties to even; unchanged if `bf16` is false.
inline Vector rounded(Vector v, bool bf16) {
  const Words bits = (Words)v, nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
  return !bf16 ? v : (Vector)(v == v ? nearest : Words{} + 0x7FC00000u);
}

}  // namespace
