// The integer codes of packed weights as bytes, and dot products of bytes.
//
// A step of a row has PARTS vectors of bytes. `arrange` puts the bytes of x in the same order.

#pragma once

#include "weights.h"

namespace {

#if defined(__AVX512VNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
constexpr bool UNSIGNED_CODES = true;  // the instruction multiplies unsigned bytes by signed ones
#else
constexpr bool UNSIGNED_CODES = false;
#endif

// sums + the dot products of four bytes of codes and of x in each lane.
inline Ints dot(Ints sums, Words codes, Words x) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)x);
#elif defined(__AVXVNNI__)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)x);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  // |codes| times x with the sign of the code: sums of two products stay below 2^15.
  const __m256i a = _mm256_sign_epi8((__m256i)codes, (__m256i)codes), b = _mm256_sign_epi8((__m256i)x, (__m256i)codes);
  return sums + (Ints)_mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1));
#else
  for (int j = 0; j < 4; j++) sums += ((Ints)(codes << (24 - 8 * j)) >> 24) * ((Ints)(x << (24 - 8 * j)) >> 24);
  return sums;
#endif
}

// The steps of a row of W. Its last step may reach into the next row, where x is zero, but not past the matrix: there it
// is read from a copy.
struct Steps {
  static constexpr int BYTES = 4 * LANES;
  const char* row;
  int64_t whole;  // steps that lie in the matrix
  char last[BYTES];

  Steps(const Matrix& w, int64_t at) : row(w.values + at * w.row_bytes), whole(1l << 62) {
    const int64_t left = (w.outputs - at) * w.row_bytes;  // bytes until the matrix ends
    if (left < w.row_bytes + BYTES) {
      whole = left / BYTES;
      memset(last, 0, BYTES);
      memcpy(last, row + whole * BYTES, left - whole * BYTES);
    }
  }
  Words operator[](int64_t k) const { return load<Words>(k < whole ? row + k * BYTES : last); }
};

struct Int8Codes {
  static constexpr int PARTS = 1, OFFSET = UNSIGNED_CODES ? 128 : 0;
  struct Row {
    Steps steps;
    Row(const Matrix& w, int64_t at) : steps(w, at) {}
    void read(int64_t k, Words* parts) const { parts[0] = steps[k] ^ (UNSIGNED_CODES ? 0x80808080u : 0); }
  };
  static void arrange(const int8_t* from, int count, char* step, int64_t at) { memcpy(step + at, from, count); }
};

struct Int4Codes {  // in the order of quant/int4.py: the low and then the high nibbles of a word's four bytes
  static constexpr int PARTS = 2, OFFSET = 0;
  struct Row {
    Steps steps;
    Row(const Matrix& w, int64_t at) : steps(w, at) {}
    void read(int64_t k, Words* parts) const {
      const Words words = steps[k];
      parts[0] = words & 0x0F0F0F0Fu;
      parts[1] = words >> 4 & 0x0F0F0F0Fu;
    }
  };
  static void arrange(const int8_t* from, int count, char* step, int64_t at) {
    for (int i = 0; i < count; i += 8) {
      char* to = step + (at + i) / 2;
      const int8_t* c = from + i;
      const int8_t low[4] = {c[0], c[4], c[1], c[5]}, high[4] = {c[2], c[6], c[3], c[7]};
      memcpy(to, low, 4);
      memcpy(to + 4 * LANES, high, 4);
    }
  }
};

}  // namespace
