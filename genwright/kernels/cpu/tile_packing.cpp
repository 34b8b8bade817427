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

void read_block(const Packing& p, const uint8_t* from, uint8_t* q) {
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
  memset(q, 0, n);
  for (int i = 0; p.nibbles >= 0 && i < n / 2; i += p.width)
    for (int j = 0; j < p.width; j++) {
      const uint8_t byte = from[p.nibbles + i + j];
      q[2 * i + j] = byte & 15, q[2 * i + p.width + j] = byte >> 4;
    }
  for (int i = 0; p.pairs >= 0 && i < n; i += 32)
    for (int j = 0; j < 32; j++)
      q[i + j] += (from[p.pairs + i / 128 * 32 + j] >> (i % 128 / 16) & 3) << p.pairs_shift;
  for (int i = 0; p.plane >= 0 && i < n; i += 32)
    for (int j = 0; j < 32; j++) q[i + j] += (from[p.plane + j] >> (i / 32) & 1) << p.plane_shift;
  for (int i = 0; p.word >= 0 && i < n; i++) q[i] += (from[p.word + i / 8] >> i % 8 & 1) << p.word_shift;
}

// Write the integers of one row in one unit.
void write_unit(const Packing& p, const uint8_t* q, int64_t unit, int lane) {
  uint32_t w[8];
  memcpy(w, q, sizeof w);
  const int stored = p.bits == 8 ? 8 : 4, width = p.bits - 4;
  uint32_t* codes = p.codes + unit * stored * ROWS + lane;
  for (int k = 0; k < stored; k++)
    codes[k * ROWS] = p.bits == 8 ? w[k] : (w[k] & 0x0F0F0F0F) | (w[k + 4] & 0x0F0F0F0F) << 4;
  if (p.bits == 8 || width == 0) return;
  uint32_t* high = p.high + unit * width * ROWS + lane;
  for (int i = 0; i < width; i++) {
    uint32_t sum = 0;
    for (int k = 0; k < 8 / width; k++) sum |= (w[i * 4 + k] >> 4 & 0x01010101 * ((1 << width) - 1)) << k * width;
    high[i * ROWS] = sum;
  }
}

}  // namespace

extern "C" int64_t pack_part(Packing* p, int) {
  const int64_t tiles = (p->rows + ROWS - 1) / ROWS, block_units = p->elements / COLUMNS;
  uint8_t q[MAX_ELEMENTS], last[MAX_BYTES];
  int64_t finished = 0;
  for (int64_t tile; (tile = p->progress.take(1, tiles)) >= 0; finished++)
    for (int64_t unit = 0; unit < p->units; unit += block_units)
      for (int lane = 0; lane < ROWS; lane++) {
        const int64_t row = tile * ROWS + lane, at = unit / block_units * p->bytes, left = p->row_bytes - at;
        const uint8_t* from = p->raw + row * p->stride + at;
        if (row >= p->rows) {
          memset(q, 0, sizeof q);
        } else if (left < p->bytes) {  // the row ends inside the block
          memset(last, 0, sizeof last);
          memcpy(last, from, left);
          read_block(*p, last, q);
        } else {
          read_block(*p, from, q);
        }
        for (int i = 0; i < block_units; i++) write_unit(*p, q + i * COLUMNS, tile * p->units + unit + i, lane);
      }
  return finished;
}
