// How blocks share tiles of rows. Work is split as in stream-K (Osama et al., 2023): the stages of all tiles are one long list of UNITS,
// STEPS for each tile, of which each of GRID blocks takes an equal part, so that any shape fills all multiprocessors. A block goes
// through its part from the end to the beginning. So a tile that it shares with later blocks comes first; it leaves its fp32 sums of
// that tile in memory, where the block that has the tile's end picks them up when it is done itself. That block waits for earlier
// blocks only, which have been started.

#define MOST_BEFORE ((GRID * STEPS + UNITS - 1) / UNITS)  // blocks before the one that has a tile's end

__device__ __forceinline__ int first_unit(int block) { return block * UNITS / GRID; }
__device__ __forceinline__ int block_of(int unit) { return ((unit + 1) * GRID - 1) / UNITS; }
