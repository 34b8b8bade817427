// How a weight lies in memory, and how its rows become vectors of floats.
//
// A format takes a row in steps of BYTES; a step holds PARTS vectors of LANES weights. Lane i of part j is the weight in
// column `column(i, j)` of the step, and inputs are put in the same order once, so that no weight has to move sideways.
// A lane of any part belongs to the same group of columns, so parts are added up before they meet the group's scale.

#include "vectors.h"

namespace {

enum Scales { ROWS, GROUPS, MINIMUMS };  // one per row or none at all; one per group; a minimum beside it

struct Matrix {          // `Matrix` of products.py
  const char* values;    // [outputs, row_bytes]
  const void* scales;    // [ceil(outputs / height), groups], float32 or float16; null where there are none
  const void* minimums;  // in the same way
  int64_t outputs, inputs, row_bytes;
  int64_t group, height;  // columns and rows that share a scale
  int64_t half;           // whether scales are float16
};

struct Bf16Pairs {  // two in a lane; where the processor multiplies pairs of bf16, x too is kept as bf16, in its own order
  static constexpr int BYTES = 4 * LANES, PARTS = 2;
  static constexpr float UNIT = 1;
  static constexpr int column(int lane, int part) { return 2 * lane + part; }
  static inline Vector part(const char* from, int j) {
    const Words pairs = load<Words>(from);
    return (Vector)(j ? pairs & 0xFFFF0000u : pairs << 16);
  }
};

struct Int8 {  // four in a lane
  static constexpr int BYTES = 4 * LANES, PARTS = 4;
  static constexpr float UNIT = 1;
  static constexpr int column(int lane, int part) { return 4 * lane + part; }
  static inline Vector part(const char* from, int j) {
    return __builtin_convertvector((Ints)(load<Words>(from) << (24 - 8 * j)) >> 24, Vector);
  }
};

struct Int4 {  // eight in a lane, in the order of quant/int4.py, less 8: minimums are shifted by as much
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

struct Fp8 {  // e4m3 is float16 with fewer bits and 2^8 times the value; its NaN, which no weight is, becomes 480
  static constexpr int BYTES = 4 * LANES, PARTS = 4;
  static constexpr float UNIT = 256;
  static constexpr int column(int lane, int part) { return LANES * part + lane; }  // groups are whole steps
  static inline Vector part(const char* from, int j) {
    Shorts wide = __builtin_convertvector(load<Bytes>(from + LANES * j), Shorts);
    return from_float16((Halves)(wide << 7) & 0xBFFF);
  }
};

// How the lanes of a row find their scales.
struct Groups {
  const Matrix& w;
  uint32_t count, lanes;  // groups of a row; lanes of a group
  bool even;       // whether a vector lies in one group, or whole groups in a vector; else `read` copies for each lane
  int64_t floats;  // that `read` writes
  Words index;     // of a lane's scale, from that of lane 0

  Groups(const Matrix& w, int parts) : w(w), count((w.inputs + w.group - 1) / w.group) {
    lanes = count <= 1 ? 1u << 31 : w.group / parts;
    even = LANES % lanes == 0 || lanes % LANES == 0;
    floats = (even ? count : count * lanes) + LANES;
    for (int i = 0; i < LANES; i++) index[i] = even ? i / lanes : i;
  }

  // A row's scales (or minimums) in float32, times `unit`; then zeros, as no lane beyond a row may be a NaN.
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

  // Those of a step's lanes.
  Vector of(const float* row, int64_t step) const {
    return permute(load<Vector>(row + uint32_t(step * LANES) / (even ? lanes : 1)), index);
  }
};

}  // namespace
