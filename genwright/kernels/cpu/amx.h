// Products of bytes by AMX: x of eight tokens times the codes of W in a group, for 16 rows of W at a time.
//
// The words of 16 rows lie side by side in W, which is how AMX reads its second factor.

#pragma once

#include "dots.h"

#ifdef AMX

namespace {

struct TileShapes {  // as LDTILECFG reads them
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};
};

constexpr TileShapes tile_shapes() {  // 0 and 1: sums; 2: codes; 3 and 4: x
  TileShapes shapes;
  for (int i = 0; i < 5; i++) {
    shapes.bytes[i] = i < 3 ? sizeof(Words) : sizeof(uint32_t) * GROUP_WORDS;
    shapes.rows[i] = i == 2 ? GROUP_WORDS : Rounded::TOKENS;
  }
  return shapes;
}

// Lets a thread use AMX. The registers are released after use, because saving them makes context switches slower.
struct TileRegisters {
  TileRegisters() {
    static constexpr TileShapes shapes = tile_shapes();
    _tile_loadconfig(&shapes);
  }
  ~TileRegisters() { _tile_release(); }
};

struct TileSums {
  Ints low[Rounded::TOKENS], high[Rounded::TOKENS];  // of the products with both bytes of x
};

// The sums of each group of some units: q [units, WORDS], x [units, TOKENS], sums [units, GROUPS].
inline void tile_sums(const Words* q, const Rounded* x, int64_t units, TileSums* sums) {
  asm volatile("" ::: "memory");  // GCC does not know that _tile_loadd reads memory
  for (int64_t unit = 0; unit < units; unit++, q += WORDS, x += Rounded::TOKENS)
    for (int word = 0; word < WORDS; word += GROUP_WORDS, sums++) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_loadd(2, q + word, sizeof(Words));
      _tile_loadd(3, x->low + word, sizeof(Rounded));
      _tile_loadd(4, x->all_high + word, sizeof(Rounded));
      _tile_dpbsud(0, 3, 2);
      _tile_dpbsud(1, 4, 2);
      _tile_stored(0, sums->low, sizeof(Ints));
      _tile_stored(1, sums->high, sizeof(Ints));
    }
}

}  // namespace

#endif
