// AMX's tile registers and the few instructions that kernels/cpu/amx.h uses, after Intel's manual, for other processors.

#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>

namespace emulated_amx {

struct Shapes {
  uint8_t palette, start, unused[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

inline thread_local Shapes shapes;
inline thread_local uint8_t tiles[8][16][64];

inline void require(bool valid) {
  if (!valid) puts("invalid use of AMX"), abort();
}

inline void load_config(const void* from) {
  memcpy(&shapes, from, sizeof shapes);
  memset(tiles, 0, sizeof tiles);
  static const Shapes zeros{};
  require(shapes.palette == 1 && shapes.start == 0 && !memcmp(shapes.unused, zeros.unused, sizeof zeros.unused));
  for (int i = 0; i < 16; i++) {
    require(!shapes.bytes[i] == !shapes.rows[i] && shapes.bytes[i] <= 64 && shapes.rows[i] <= 16);
    require(i < 8 || !shapes.rows[i]);
  }
}

inline void use(int tile) { require(shapes.palette == 1 && shapes.rows[tile] > 0); }

inline void zero(int tile) {
  use(tile);
  memset(tiles[tile], 0, sizeof tiles[tile]);
}

inline void load(int tile, const void* from, int64_t stride) {
  zero(tile);
  for (int i = 0; i < shapes.rows[tile]; i++) memcpy(tiles[tile][i], (const char*)from + i * stride, shapes.bytes[tile]);
}

inline void store(int tile, void* to, int64_t stride) {
  use(tile);
  for (int i = 0; i < shapes.rows[tile]; i++) memcpy((char*)to + i * stride, tiles[tile][i], shapes.bytes[tile]);
}

// sums [m, n] += a [m, k] b [k, n]: a's bytes are signed, b's are not and lie in fours.
inline void dot(int sums, int a, int b) {
  use(sums), use(a), use(b);
  require(sums != a && sums != b && a != b && shapes.bytes[a] == 4 * shapes.rows[b] &&
          shapes.bytes[b] == shapes.bytes[sums] && shapes.rows[a] == shapes.rows[sums]);
  for (int m = 0; m < shapes.rows[sums]; m++)
    for (int n = 0; n < shapes.bytes[sums] / 4; n++) {
      int32_t sum;
      memcpy(&sum, tiles[sums][m] + 4 * n, sizeof sum);
      for (int k = 0; k < shapes.bytes[a]; k++) sum += int8_t(tiles[a][m][k]) * tiles[b][k / 4][4 * n + k % 4];
      memcpy(tiles[sums][m] + 4 * n, &sum, sizeof sum);
    }
}

inline void release() { shapes = {}; }

}  // namespace emulated_amx

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig emulated_amx::load_config
#define _tile_release emulated_amx::release
#define _tile_zero emulated_amx::zero
#define _tile_loadd emulated_amx::load
#define _tile_stored emulated_amx::store
#define _tile_dpbsud emulated_amx::dot
