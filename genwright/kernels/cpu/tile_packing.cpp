// Lay out packed rows in tiles of 16 rows (quant/tiles.py): the blocks of a GGML type, or int4's or int8's own order.

#include "calls.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int ROWS = 16, COLUMNS = 32, MAX_ELEMENTS = 256, MAX_BYTES = 256;

struct Packing {                   // `Packing` of tile_packing.py
  Progress progress;               // units of work: tiles
  const uint8_t* raw;              // [rows, stride], of which row_bytes are used
  uint32_t *codes, *high;          // [tiles, units, 4 or 8, ROWS], and 1 or 2
  int64_t rows, stride, row_bytes, units;
  int32_t bits, elements, bytes;   // of an integer; of a block
  // Byte offsets of the parts of a block's integers, or -1; see `Bits` of quant/ggml.py. `words` are int4's.
  int32_t whole, words, nibbles, width, pairs, pairs_shift, plane, plane_shift, word, word_shift;
};

// The width is a constant, so that the compiler uses vectors.
template <int WIDTH>
void read_nibbles(const uint8_t* __restrict from, uint8_t* __restrict q, int n) {
  for (int i = 0; i < n / 2; i += WIDTH)
    for (int j = 0; j < WIDTH; j++) {
      q[2 * i + j] = from[i + j] & 15;
      q[2 * i + WIDTH + j] = from[i + j] >> 4;
    }
}

void read_block(const Packing& p, const uint8_t* __restrict from, uint8_t* __restrict q) {
  const int n = p.elements;
  if (p.whole >= 0) {
    for (int i = 0; i < n; i++) q[i] = from[p.whole + i] ^ 128;
    return;
  }
  if (p.words >= 0) {
    for (int i = 0; i < n; i += 8) {
      uint32_t w;
      memcpy(&w, from + p.words + i / 2, 4);
      for (int j = 0; j < 4; j++) q[i + 2 * j] = w >> 4 * j & 15, q[i + 2 * j + 1] = w >> (4 * j + 16) & 15;
    }
    return;
  }
  if (p.nibbles < 0) memset(q, 0, n);
  else if (p.width == 16) read_nibbles<16>(from + p.nibbles, q, n);
  else if (p.width == 32) read_nibbles<32>(from + p.nibbles, q, n);
  else read_nibbles<64>(from + p.nibbles, q, n);
  for (int i = 0; p.pairs >= 0 && i < n; i += 32)
    for (int j = 0; j < 32; j++)
      q[i + j] += (from[p.pairs + i / 128 * 32 + j] >> (i % 128 / 16) & 3) << p.pairs_shift;
  for (int i = 0; p.plane >= 0 && i < n; i += 32)
    for (int j = 0; j < 32; j++) q[i + j] += (from[p.plane + j] >> (i / 32) & 1) << p.plane_shift;
  for (int i = 0; p.word >= 0 && i < n; i++) q[i] += (from[p.word + i / 8] >> i % 8 & 1) << p.word_shift;
}

// Write the integers of one row in one unit.
template <int BITS>
void write_unit(uint32_t* codes, uint32_t* high, const uint8_t* q) {
  uint32_t w[8];
  memcpy(w, q, sizeof w);
  if constexpr (BITS == 8) {
    for (int k = 0; k < 8; k++) codes[k * ROWS] = w[k];
  } else {
    for (int k = 0; k < 4; k++) codes[k * ROWS] = (w[k] & 0x0F0F0F0F) | (w[k + 4] & 0x0F0F0F0F) << 4;
  }
  if constexpr (BITS == 5 || BITS == 6) {
    constexpr int WIDTH = BITS - 4;
    for (int i = 0; i < WIDTH; i++) {
      uint32_t sum = 0;
      for (int k = 0; k < 8 / WIDTH; k++) sum |= (w[i * 4 + k] >> 4 & 0x01010101 * ((1 << WIDTH) - 1)) << k * WIDTH;
      high[i * ROWS] = sum;
    }
  }
}

template <int BITS>
int64_t pack(Packing& p) {
  constexpr int STORED = BITS == 8 ? 8 : 4, WIDTH = BITS == 8 ? 0 : BITS - 4;
  const int64_t tiles = (p.rows + ROWS - 1) / ROWS, block_units = p.elements / COLUMNS;
  const bool ordered = BITS == 4 && p.nibbles >= 0 && p.width == 16;  // the nibbles have the order of codes
  uint8_t q[MAX_ELEMENTS], last[MAX_BYTES];
  int64_t finished = 0;
  for (int64_t tile; (tile = p.progress.take(1, tiles)) >= 0; finished++)
    for (int64_t unit = 0, at = 0; unit < p.units; unit += block_units, at += p.bytes)
      for (int lane = 0; lane < ROWS; lane++) {
        const int64_t row = tile * ROWS + lane, left = p.row_bytes - at;
        const uint8_t* from = p.raw + row * p.stride + at;
        if (ordered && row < p.rows && left >= p.bytes) {
          uint32_t* codes = p.codes + (tile * p.units + unit) * ROWS * STORED + lane;
          for (int k = 0; k < block_units * 4; k++) memcpy(codes + k * ROWS, from + p.nibbles + 4 * k, 4);
          continue;
        }
        if (row >= p.rows) {
          memset(q, 0, sizeof q);
        } else if (left < p.bytes) {  // the row ends inside the block
          memset(last, 0, sizeof last);
          memcpy(last, from, left);
          read_block(p, last, q);
        } else {
          read_block(p, from, q);
        }
        for (int i = 0; i < block_units; i++) {
          const int64_t first = (tile * p.units + unit + i) * ROWS;
          write_unit<BITS>(p.codes + first * STORED + lane, p.high + first * WIDTH + lane, q + i * COLUMNS);
        }
      }
  return finished;
}

}  // namespace

extern "C" int64_t pack_part(Packing* p, int) {
  switch (p->bits) {
    case 4: return pack<4>(*p);
    case 5: return pack<5>(*p);
    case 6: return pack<6>(*p);
    default: return pack<8>(*p);
  }
}
