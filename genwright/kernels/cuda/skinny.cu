// y = W x for up to 64 tokens, on the tensor cores (a skinny GEMM): 16 rows of W are the left matrix of mma.m16n8k16, and
// eight tokens the right one. A lane unpacks a weight once and multiplies it with every token.
//
// A stage is K_TILE columns of a block's rows, their scales, and x of these columns. `cp.async` keeps STAGES - 1 stages in
// flight; consecutive threads copy consecutive chunks of a row. x stays in its own type, and weights are rounded to it.
//
// Work is split as in stream-K (Osama et al., 2023): the stages of all tiles of rows are one long list, of which each block
// takes an equal part, so that any shape fills all multiprocessors. A block goes through its part from the end to the
// beginning. So a tile that it shares with later blocks comes first; it writes its fp32 sums of that tile to memory, where the
// block that has the tile's end picks them up when it is done itself. That block waits for earlier blocks only, which have
// been started. A sum says itself that it has arrived: memory holds NOTHING before. (With a counter and fences, the bf16
// products of a layer and eight tokens took 132 instead of 110 us.)
//
// The sums of a tile pass through shared memory to warps of their own, the finishers, which write y or the shared sums
// while the others multiply. All warps finish a block's last tile.
//
// Compiled for one shape. Macros: FORMAT (INT4, or X_TYPE), X_TYPE (F16 or BF16), SCALE_TYPE; OUTPUTS, COLUMNS; GROUP; N_TILES
// (of 8 tokens), M_TILES (of 16 rows, per warp), K_TILE (a multiple of 128), STAGES, THREADS (without the finishers),
// FINISHERS (threads), BLOCKS (per multiprocessor), GRID (blocks); flags GATE, MINIMUMS, PDL.

#define ROWS 16
#define SHARE 0
#define OPERAND X_TYPE
#include "types.cuh"
#include "operands.cuh"

#define TOKENS (8 * N_TILES)
#define ALL_THREADS (THREADS + FINISHERS)
#define CHUNKS (K_TILE / 4 / WIDTH)  // of a stage, per lane and row
#define ROW_PARTS (4 * CHUNKS)       // chunks of a stage's row
#define STEPS ((COLUMNS + K_TILE - 1) / K_TILE)
#define BLOCK_TILES (WARPS * M_TILES)
#define BLOCK_ROWS (16 * BLOCK_TILES)
#define TILE_OUTPUTS (BLOCK_TILES * STEP)
#define UNITS ((OUTPUTS + TILE_OUTPUTS - 1) / TILE_OUTPUTS * STEPS)  // a unit is one stage of one tile of rows
#define WHOLE_TILES (OUTPUTS % TILE_OUTPUTS == 0)
#define SCALED (GROUP > 0)
#define SCALE_BYTES (SCALE_TYPE == F32 ? 4 : 2)
#define STAGE_SCALES (SCALED ? K_TILE / (SCALED ? GROUP : 1) * SCALE_BYTES : 0)  // bytes of a stage's row
#define ALIGNED(bytes) (STAGE_SCALES % (bytes) == 0 && SCALES * SCALE_BYTES % (bytes) == 0)
#define SCALE_PART (ALIGNED(16) ? 16 : ALIGNED(8) ? 8 : 4)  // bytes of a copy

struct Stage {
    uint4 weight[BLOCK_ROWS][ROW_PARTS];  // in odd rows neighbouring slices of four are exchanged, so that banks differ
    // Pieces of eight columns: [chunk][j] of all four lanes of a quad, which are neighbours. Odd tokens have them four places
    // away from where even tokens have them, so that eight lanes (two tokens) read from different banks.
    uint4 x[TOKENS][K_TILE / 8];
#if SCALED
    alignas(16) u8 scale[BLOCK_ROWS][STAGE_SCALES];
#if MINIMUMS
    alignas(16) u8 minimum[BLOCK_ROWS][STAGE_SCALES];
#endif
#endif
};

enum Barrier { MULTIPLIED = 1, FULL, EMPTY };  // FULL, EMPTY: the sums in shared memory

template <int COUNT> __device__ __forceinline__ void sync(Barrier barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"((int)barrier), "n"(COUNT) : "memory");
}

__device__ __forceinline__ void arrive(Barrier barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"((int)barrier), "n"(ALL_THREADS) : "memory");
}

template <int BYTES> __device__ __forceinline__ void copy(void* to, const void* from, bool valid) {  // zeros where not valid
    const u32 place = (u32)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(valid ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(place), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
                     : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void wait_for_oldest() {  // of STAGES - 1 groups of copies
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
}

// Rows of a tile are 16 to an mma; with GATE eight of these are the gate's, and eight the up-projection's.
__device__ __forceinline__ constexpr int output_after(int r) { return GATE ? r / 16 * 8 + r % 8 : r; }
__device__ __forceinline__ constexpr int row_after(int r) { return output_after(r) + (GATE ? r % 16 / 8 * OUTPUTS : 0); }

#include "skinny_outputs.cuh"

#define ROOM (THREADS <= 256 && M_TILES * N_TILES <= 2)  // registers for a block of the next kernel, which loads meanwhile
extern "C" __global__ void __launch_bounds__(ALL_THREADS, BLOCKS + ROOM)
skinny(const void* x, const Chunk* weight, const void* scales, const void* minimums, const void* bias, const void* residual,
       void* y, u32* parts, int tokens) {
    extern __shared__ uint4 memory[];
    Stage* const stages = (Stage*)memory;
    float* const sums = (float*)(stages + STAGES);  // [token][row] of a tile
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;
    const int begin = first_unit(blockIdx.x), end = first_unit(blockIdx.x + 1);
    const int first_tile = (end - 1) / STEPS, last_tile = begin / STEPS;  // in the order of work
    const Outputs to = {bias, residual, y, parts, tokens};
    auto finish_last = [&] {
        __syncthreads();
        finish<ALL_THREADS, true>(to, sums, last_tile, thread);
    };
    if (thread >= THREADS) {
        join_stream();
        for (int tile = first_tile; tile > last_tile; tile--) {
            sync<ALL_THREADS>(FULL);
            finish<FINISHERS, false>(to, sums, tile, thread - THREADS);
            arrive(EMPTY);
        }
        finish_last();
        return;
    }

    auto fetch_weights = [&](Stage& stage, int unit) {
        const int step = (u32)unit % STEPS, tile = (u32)unit / STEPS, first = tile * TILE_OUTPUTS;
        constexpr int TOGETHER = THREADS / ROW_PARTS;  // rows that the threads copy at a time
        const int row = thread / ROW_PARTS, part = thread % ROW_PARTS, column = step * ROW_PARTS + part;
        const Chunk* const from = weight + (long)(first + row_after(row)) * ROW_CHUNKS + column;
#pragma unroll
        for (int r = 0; r < BLOCK_ROWS; r += TOGETHER) {
            const bool inside = WHOLE_TILES || first + output_after(row) + output_after(r) < OUTPUTS;
            const int place = ROW_PARTS > 4 ? part ^ (r + row) % 2 * 4 : part;
            copy<16>(&stage.weight[r + row][place], from + (long)row_after(r) * ROW_CHUNKS,
                     inside && (COLUMNS % K_TILE == 0 || column < ROW_CHUNKS));
        }
#if SCALED
        constexpr int PARTS = STAGE_SCALES / SCALE_PART, ROW_BYTES = SCALES * SCALE_BYTES;
#pragma unroll
        for (int base = 0; base < BLOCK_ROWS * PARTS; base += THREADS) {
            const int i = base + thread, r = i / PARTS, place = i % PARTS * SCALE_PART, byte = step * STAGE_SCALES + place;
            if (BLOCK_ROWS * PARTS % THREADS && r >= BLOCK_ROWS) break;
            const bool valid = (WHOLE_TILES || first + output_after(r) < OUTPUTS) && (COLUMNS % K_TILE == 0 || byte < ROW_BYTES);
            const long at = (long)(first + row_after(r)) * ROW_BYTES + byte;
            copy<SCALE_PART>(&stage.scale[r][place], (const char*)scales + at, valid);
#if MINIMUMS
            copy<SCALE_PART>(&stage.minimum[r][place], (const char*)minimums + at, valid);
#endif
        }
#endif
    };
    auto fetch_x = [&](Stage& stage, int unit) {
        const int step = (u32)unit % STEPS;
#pragma unroll
        for (int first = 0; first < TOKENS * (K_TILE / 8); first += THREADS) {
            const int i = first + thread, token = i / (K_TILE / 8), order = i % (K_TILE / 8);
            const int chunk = order / 4 / PIECES * 4 + order % 4, j = order / 4 % PIECES;
            const int piece = step * (K_TILE / 8) + chunk * PIECES + j;
            if (TOKENS * (K_TILE / 8) % THREADS && token >= TOKENS) break;
            const bool valid = token < tokens && (COLUMNS % K_TILE == 0 || piece < COLUMNS / 8);
            copy<16>(&stage.x[token][order ^ (token % 2 * 4)], (const uint4*)x + (long)token * (COLUMNS / 8) + piece, valid);
        }
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (end - 1 - s >= begin) fetch_weights(stages[s], end - 1 - s);
    join_stream();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (end - 1 - s >= begin) fetch_x(stages[s], end - 1 - s);
        commit_copies();
    }

    float sum[M_TILES][N_TILES][4] = {};
    auto add_stage = [&](const Stage& stage) {
        const uint4* const own = stage.x[quad] + member;
        const uint4* const pieces[2] = {own + quad % 2 * 4, own + 4 - quad % 2 * 4};  // with an even and an odd chunk * PIECES + j
        const int row = warp * M_TILES * 16 + quad;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            Chunk chunk[M_TILES][2];
            Factors factors[M_TILES][2];
#pragma unroll
            for (int i = 0; i < 2 * M_TILES; i++) {
                const int r = row + i * 8;
                chunk[i / 2][i % 2] = *(const Chunk*)&stage.weight[r][ROW_PARTS > 4 ? (c * 4 + member) ^ quad % 2 * 4 : member];
                float scale = 1.0f, minimum = 0.0f;
#if SCALED
                const int place = (c * 4 + member) * WIDTH / GROUP;
                scale = load_as_float<SCALE_TYPE>(stage.scale[r], place);
#if MINIMUMS
                minimum = load_as_float<SCALE_TYPE>(stage.minimum[r], place);
#endif
#endif
                factors[i / 2][i % 2] = factors_of(scale, minimum);
            }
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                u32 a[M_TILES][2][4];
#pragma unroll
                for (int i = 0; i < 2 * M_TILES; i++)
                    scale_piece<SCALED>(chunk[i / 2][i % 2], j, factors[i / 2][i % 2], a[i / 2][i % 2]);
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
                    const int order = c * PIECES + j;
                    const uint4 b = pieces[order % 2][n * K_TILE + order / 2 * 8];
#pragma unroll
                    for (int m = 0; m < M_TILES; m++) {
                        multiply(sum[m][n], a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1], b.x, b.y);
                        multiply(sum[m][n], a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3], b.z, b.w);
                    }
                }
            }
        }
    };

    int slot = 0, refill = STAGES - 1;
    for (int unit = end - 1; unit >= begin; unit--) {
        wait_for_oldest();
        sync<THREADS>(MULTIPLIED);  // this stage has arrived, and no warp reads the stage before it any more
        if (unit - (STAGES - 1) >= begin) {
            fetch_weights(stages[refill], unit - (STAGES - 1));
            fetch_x(stages[refill], unit - (STAGES - 1));
        }
        commit_copies();
        add_stage(stages[slot]);
        refill = slot;
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        if (unit % STEPS && unit > begin) continue;
        const int tile = unit / STEPS;
        if (tile < first_tile) sync<ALL_THREADS>(EMPTY);
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) {
            const int m = i / 4 / N_TILES, n = i / 4 % N_TILES, token = n * 8 + member * 2 + i % 2;
            sums[token * SUM_PITCH + (warp * M_TILES + m) * 16 + i % 4 / 2 * 8 + quad] = sum[m][n][i % 4];
            sum[m][n][i % 4] = 0.0f;
        }
        if (tile > last_tile) arrive(FULL);
    }
    finish_last();
}
