// The memory layouts of weights, and how their rows become vectors of floats.
//
// A format reads a row in steps of BYTES; a step holds PARTS vectors of LANES weights. Lane i of part j is the weight in
// column `column(i, j)` of the step. The inputs are put in the same order once, so that weights need no shuffles. Lane i
// of every part belongs to the same group of columns, so parts are summed before they are multiplied by the scale.

#pragma once

#include "vectors.h"

namespace {

enum Scales { ROWS, GROUPS, MINIMUMS };  // per row or none; per group; per group with a minimum

struct Matrix {          // `Matrix` of fused_linear.py
  const char* values;    // [outputs, row_bytes]
  const void* scales;    // [ceil(outputs / height), groups], or null
  const void* minimums;  // like scales
  int64_t outputs, inputs, row_bytes;
  int64_t group, height;  // columns and rows that share a scale
  int64_t half;           // whether scales are float16, not float32
};

struct Bf16Pairs {  // two per lane, for processors that multiply pairs of bf16; x stays bf16 in its own order
  static constexpr int BYTES = 4 * LANES, PARTS = 2;
  static constexpr float UNIT = 1;
  static constexpr int column(int lane, int part) { return 2 * lane + part; }
  static inline Vector part(const char* from, int j) {
    const Words pairs = load<Words>(from);
    return (Vector)(j ? pairs & 0xFFFF0000u : pairs << 16);
  }
};

struct Int8 {  // four per lane
  static constexpr int BYTES = 4 * LANES, PARTS = 4;
  static constexpr float UNIT = 1;
  static constexpr int column(int lane, int part) { return 4 * lane + part; }
  static inline Vector part(const char* from, int j) {
    return __builtin_convertvector((Ints)(load<Words>(from) << (24 - 8 * j)) >> 24, Vector);
  }
};

struct Int4 {  // eight per lane, in the order of quant/int4.py, minus 8; minimums are shifted accordingly
  static constexpr int BYTES = 4 * LANES, PARTS = 8;
  static constexpr float UNIT = 1;
  static constexpr int column(int lane, int part) { return 8 * lane + part % 4 * 2 + part / 4; }
  static inline Vector part(const char* from, int j) {
    Words q = load<Words>(from) >> (4 * j);
#ifdef __AVX512F__
    return permute(Vector{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, q);
#else
    return __builtin_convertvector((Ints)(q & 15), Vector) - 8;
#endif
  }
};

struct Fp8 {  // e4m3's bits are a float16 of 2^-8 times the value; NaN becomes 480, but no weight is NaN
  static constexpr int BYTES = 4 * LANES, PARTS = 4;
  static constexpr float UNIT = 256;
  static constexpr int column(int lane, int part) { return LANES * part + lane; }  // a group is a multiple of a step
  static inline Vector part(const char* from, int j) {
    Shorts bits = to_shorts(load<Bytes>(from + LANES * j));
    return from_float16((Halves)(bits << 7) & 0xBFFF);
  }
};

// The scale of each lane of a row.
struct Groups {
  const Matrix& w;
  uint32_t count, lanes;  // groups per row; lanes per group
  bool even;       // a vector lies in one group, or holds whole groups; otherwise `read` copies a scale for each lane
  int64_t floats;  // number of floats that `read` writes
  Words index;     // offset of each lane's scale from that of lane 0

  Groups(const Matrix& w, int parts) : w(w), count((w.inputs + w.group - 1) / w.group) {
    lanes = count <= 1 ? 1u << 31 : w.group / parts;
    even = LANES % lanes == 0 || lanes % LANES == 0;
    floats = (even ? count : count * lanes) + LANES;
    for (int i = 0; i < LANES; i++) index[i] = even ? i / lanes : i;
  }

  // Write a row's scales (or minimums) in float32, times `unit`, then zeros, because lanes past the row must not be NaN.
  void read(const void* from, int64_t row, float unit, float* to) const {
    const int64_t start = uint32_t(row) / uint32_t(w.height) * int64_t(count), end = floats - LANES;
    int64_t i = 0;
    if (even && w.half)
      for (; i + LANES <= end; i += LANES) {
        const Vector v = from_float16(load<Halves>((const uint16_t*)from + start + i)) * unit;
        memcpy(to + i, &v, sizeof v);
      }
    for (; i < end; i++) to[i] = one(from, start + (even ? i : i / lanes)) * unit;
    memset(to + end, 0, LANES * sizeof(float));
  }

  float one(const void* from, int64_t i) const {
    return w.half ? from_float16(Halves{((const uint16_t*)from)[i]})[0] : ((const float*)from)[i];
  }

  // The scales of a step's lanes.
  Vector of(const float* row, int64_t step) const {
    return permute(load<Vector>(row + uint32_t(step * LANES) / (even ? lanes : 1)), index);
  }
};

}  // namespace
