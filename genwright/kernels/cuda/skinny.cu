// y = W x for up to 32 tokens, on Hopper's tensor cores (a skinny GEMM): 64 rows of W are the left matrix of wgmma.m64nNk16, and
// the tokens, in shared memory, the right one.
//
// A stage is K_TILE columns of a block's rows and their scales. `cp.async` keeps AHEAD stages in flight; consecutive threads
// copy consecutive chunks of a row. The tensor cores read unpacked weights from shared memory (DIRECT). Packed ones are unpacked to
// registers, once for all tokens, and rounded to the type of x; the columns of x are then put in the order in which lanes unpack
// weights, on the way through registers.
//
// Blocks share tiles (stream_k.cuh), and leave sums to others (parts.cuh). The sums of a tile pass through shared memory to warps of their own, the finishers, which write y or the shared sums
// while the others multiply. All warps finish a block's last tile.
//
// Compiled for one shape. Macros: FORMAT (INT8, INT4, or X_TYPE), X_TYPE (F16 or BF16), SCALE_TYPE; OUTPUTS, COLUMNS; GROUP;
// N_TILES (of 8 tokens), M_TILES (of 64 rows, per four warps), K_TILE (columns: whole slices), STAGES, THREADS (without the
// finishers), FINISHERS (threads), BLOCKS (per multiprocessor), GRID (blocks); flags GATE, MINIMUMS, PDL.

#define ROWS 16
#define SHARE 0
#define OPERAND X_TYPE
#include "types.cuh"
#include "operands.cuh"
#include "shared_memory.cuh"
#include "copies.cuh"
#include "parts.cuh"
#include "wgmma.cuh"

#define TOKENS (8 * N_TILES)
#define ALL_THREADS (THREADS + FINISHERS)
#define CHUNKS (K_TILE / 4 / WIDTH)  // of a stage, per lane and row
#define STAGE_PIECES (K_TILE / 32)   // of a stage, per lane and row, eight columns each
#define ROW_PARTS (4 * CHUNKS)       // chunks of a stage's row
#define STEPS ((COLUMNS + K_TILE - 1) / K_TILE)
#define BLOCK_TILES (WARPS * M_TILES)
#define BLOCK_ROWS (16 * BLOCK_TILES)
#define TILE_OUTPUTS (BLOCK_TILES * STEP)
#define UNITS ((OUTPUTS + TILE_OUTPUTS - 1) / TILE_OUTPUTS * STEPS)  // a unit is one stage of one tile of rows
#define WHOLE_TILES (OUTPUTS % TILE_OUTPUTS == 0)
#define DIRECT (FORMAT == OPERAND)  // the tensor cores read W from shared memory
#define LAG (DIRECT ? 2 : 1)        // stages that are still read when the next one begins
#define AHEAD (STAGES - LAG)        // stages in flight
#define SCALED (GROUP > 0)
#define SCALE_BYTES (SCALE_TYPE == F32 ? 4 : 2)
#define STAGE_SCALES (SCALED ? K_TILE / (SCALED ? GROUP : 1) * SCALE_BYTES : 0)  // bytes of a stage's row
#define ALIGNED(bytes) (STAGE_SCALES % (bytes) == 0 && SCALES * SCALE_BYTES % (bytes) == 0)
#define SCALE_PART (ALIGNED(16) ? 16 : ALIGNED(8) ? 8 : 4)  // bytes of a copy

struct alignas(1024) Stage {
#if DIRECT  // [64 columns][row][eight columns], as the tensor cores read it: numbers of eight columns are exchanged by row
    uint4 weight[K_TILE / 64][BLOCK_ROWS][8], x[K_TILE / 64][TOKENS][8];
#else
    uint4 weight[BLOCK_ROWS][ROW_PARTS];  // in odd rows neighbouring slices of four are exchanged, so that banks differ
#endif
#if SCALED
    alignas(16) u8 scale[BLOCK_ROWS][STAGE_SCALES];
#if MINIMUMS
    alignas(16) u8 minimum[BLOCK_ROWS][STAGE_SCALES];
#endif
#endif
};

// x of a stage. A row of eight columns has one pair of neighbours from each of the four chunks that a quad reads, as the left
// matrix has in registers; [piece][pair in the piece][token].
struct Inputs {
    uint4 row[STAGE_PIECES][4][TOKENS];
};

enum Barrier { MULTIPLIED = 1, FULL, EMPTY };  // FULL, EMPTY: the sums in shared memory

template <int COUNT> __device__ __forceinline__ void sync(Barrier barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"((int)barrier), "n"(COUNT) : "memory");
}

__device__ __forceinline__ void arrive(Barrier barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"((int)barrier), "n"(ALL_THREADS) : "memory");
}

// Rows of a tile are 16 to an mma; with GATE eight of these are the gate's, and eight the up-projection's.
__device__ __forceinline__ constexpr int output_after(int r) { return GATE ? r / 16 * 8 + r % 8 : r; }
__device__ __forceinline__ constexpr int row_after(int r) { return output_after(r) + (GATE ? r % 16 / 8 * OUTPUTS : 0); }

#include "stream_k.cuh"
#include "skinny_outputs.cuh"

#define X_TURNS ((STAGE_PIECES * TOKENS + THREADS - 1) / THREADS)  // pieces of x that a thread brings to a stage
// Pieces whose products are issued together: registers hold twice as many. A stage has an even number of such groups.
#define TOGETHER (M_TILES == 1 && STAGE_PIECES >= 8 ? 4 : STAGE_PIECES >= 4 ? 2 : 1)
extern "C" __global__ void __launch_bounds__(ALL_THREADS, BLOCKS)
skinny(const void* x, const Chunk* weight, const void* scales, const void* minimums, const void* bias, const void* residual,
       void* y, u32* parts, int tokens) {
    extern __shared__ uint4 memory[];
    Stage* const stages = (Stage*)memory;
    float* const sums = (float*)(stages + STAGES);               // [token][row] of a tile
    Inputs* const inputs = (Inputs*)(sums + TOKENS * SUM_PITCH);  // of three stages
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;
    const int begin = first_unit(blockIdx.x), end = first_unit(blockIdx.x + 1);
    const int first_tile = (end - 1) / STEPS, last_tile = begin / STEPS;  // in the order of work
    const Outputs to = {bias, residual, GROUP ? nullptr : scales, y, parts, tokens};
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
        constexpr int AT_ONCE = THREADS / ROW_PARTS;  // rows that the threads copy at a time
        const int row = thread / ROW_PARTS, part = thread % ROW_PARTS, column = step * ROW_PARTS + part;
        const Chunk* const from = weight + (long)(first + row_after(row)) * ROW_CHUNKS + column;
#pragma unroll
        for (int r = 0; r < BLOCK_ROWS; r += AT_ONCE) {
            const bool inside = WHOLE_TILES || first + output_after(row) + output_after(r) < OUTPUTS;
#if DIRECT
            uint4* const place = &stage.weight[part / 8][r + row][part % 8 ^ (r + row) % 8];
#else
            uint4* const place = &stage.weight[r + row][ROW_PARTS > 4 ? part ^ (r + row) % 2 * 4 : part];
#endif
            copy_async(shared_place(place), from + (long)row_after(r) * ROW_CHUNKS,
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
            copy_async<SCALE_PART>(shared_place(&stage.scale[r][place]), (const char*)scales + at, valid);
#if MINIMUMS
            copy_async<SCALE_PART>(shared_place(&stage.minimum[r][place]), (const char*)minimums + at, valid);
#endif
        }
#endif
    };

#if DIRECT
    auto fetch_x = [&](Stage& stage, int unit) {
        const int step = (u32)unit % STEPS;
#pragma unroll
        for (int first = 0; first < TOKENS * (K_TILE / 8); first += THREADS) {
            const int i = first + thread, token = i / (K_TILE / 8), part = i % (K_TILE / 8), column = step * (K_TILE / 8) + part;
            if (TOKENS * (K_TILE / 8) % THREADS && token >= TOKENS) break;
            const bool valid = token < tokens && (COLUMNS % K_TILE == 0 || column < COLUMNS / 8);
            const uint4* const from = (const uint4*)x + (long)token * (COLUMNS / 8) + column;
            copy_async(shared_place(&stage.x[part / 8][token][part % 8 ^ token % 8]), from, valid);
        }
    };
#else
    Chunk held[X_TURNS][4];  // x of the next stage: piece j of the four chunks that a quad reads
    // Eight tokens come after each other, so that lanes store to different banks.
    auto piece_of = [&](int turn) { return (turn * THREADS + thread) / 8 % STAGE_PIECES; };
    auto token_of = [&](int turn) { return (turn * THREADS + thread) / 8 / STAGE_PIECES * 8 + thread % 8; };
    auto load_x = [&](int unit) {
#pragma unroll
        for (int turn = 0; turn < X_TURNS; turn++) {
            const int piece = piece_of(turn), token = token_of(turn);
            const int column = (u32)unit % STEPS * K_TILE + piece / PIECES * 4 * WIDTH + piece % PIECES * 8;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const int at = column + m * WIDTH;
                held[turn][m] = Chunk{};
                if (token < tokens && (COLUMNS % K_TILE == 0 || at < COLUMNS))
                    held[turn][m] = ((const Chunk*)x)[(long)token * (COLUMNS / 8) + at / 8];
            }
        }
    };
    auto store_x = [&](Inputs& to) {
#pragma unroll
        for (int turn = 0; turn < X_TURNS; turn++) {
            const int piece = piece_of(turn), token = token_of(turn);
            if (STAGE_PIECES * TOKENS % THREADS && token >= TOKENS) break;
#pragma unroll
            for (int pair = 0; pair < 4; pair++)
                to.row[piece][pair][token] = make_uint4(held[turn][0].w[pair], held[turn][1].w[pair], held[turn][2].w[pair],
                                                        held[turn][3].w[pair]);
        }
        fence_products();
    };
#endif

#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (end - 1 - s >= begin) fetch_weights(stages[s], end - 1 - s);
        if (!DIRECT) commit_copies();
    }
    join_stream();
#if DIRECT
#pragma unroll
    for (int s = 0; s < AHEAD; s++) {
        if (end - 1 - s >= begin) fetch_x(stages[s], end - 1 - s);
        commit_copies();
    }
#else
    load_x(end - 1);
    store_x(inputs[0]);
    if (end - 2 >= begin) load_x(end - 2);
    u32 a[2][TOGETHER][M_TILES][2][4] = {};  // [turn][piece][tile of rows][product][register]; turns alternate
#endif

    float sum[M_TILES][N_TILES][4];
    const int first_row = warp / 4 * M_TILES * 64;
#if DIRECT
    auto add_stage = [&](const Stage& stage) {
        begin_products();
#pragma unroll
        for (int i = 0; i < K_TILE / 16 * M_TILES; i++) {
            const int k = i / M_TILES, m = i % M_TILES;
            multiply_tile(sum[m], swizzled(&stage.weight[k / 4][first_row + m * 64][k % 4 * 2]), swizzled(&stage.x[k / 4][0][k % 4 * 2]));
        }
        commit_products();
    };
#else
    auto add_stage = [&](const Stage& stage, const Inputs& x) {
        const unsigned long matrix = descriptor(&x, sizeof(x.row[0][0]), 128);  // of the first piece's first two rows
        const int row = first_row + warp % 4 * 16 + quad;
        Chunk chunk[M_TILES][2];
        Factors factors[M_TILES][2];
#pragma unroll
        for (int piece = 0; piece < STAGE_PIECES; piece++) {
            const int turn = piece / TOGETHER % 2, place = piece % TOGETHER, c = piece / PIECES;
            if (place == 0) {
                wait_for_products<1>();
                keep(a[turn]);
            }
#pragma unroll
            for (int i = 0; i < 2 * M_TILES && piece % PIECES == 0; i++) {
                const int r = row + i / 2 * 64 + i % 2 * 8;
                chunk[i / 2][i % 2] = *(const Chunk*)&stage.weight[r][ROW_PARTS > 4 ? (c * 4 + member) ^ quad % 2 * 4 : member];
                float scale = 1.0f, minimum = 0.0f;
#if SCALED
                const int at = (c * 4 + member) * WIDTH / GROUP;
                scale = load_as_float<SCALE_TYPE>(stage.scale[r], at);
#if MINIMUMS
                minimum = load_as_float<SCALE_TYPE>(stage.minimum[r], at);
#endif
#endif
                factors[i / 2][i % 2] = factors_of(scale, minimum);
            }
#pragma unroll
            for (int i = 0; i < 2 * M_TILES; i++) {
                u32 pairs[4];
                scale_piece<SCALED>(chunk[i / 2][i % 2], piece % PIECES, factors[i / 2][i % 2], pairs);
#pragma unroll
                for (int k = 0; k < 4; k++) a[turn][place][i / 2][k / 2][i % 2 + k % 2 * 2] = pairs[k];
            }
            if (place < TOGETHER - 1) continue;
            begin_products();
#pragma unroll
            for (int i = 0; i < TOGETHER * M_TILES * 2; i++) {
                const int own = i / 2 / M_TILES, m = i / 2 % M_TILES, k = i % 2, at = (piece - place + own) * 2 + k;
                multiply_tile(sum[m], a[turn][own][m][k], matrix + at * 2 * sizeof(x.row[0][0]) / 16);
            }
            commit_products();
        }
    };
#endif

    int unit = end - 1, slot = 0, refill = AHEAD, place = 0;  // place: of x
    for (int tile = first_tile; tile >= last_tile; tile--) {
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) sum[i / 4 / N_TILES][i / 4 % N_TILES][i % 4] = 0.0f;
        for (const int last = max(tile * STEPS, begin); unit >= last; unit--) {
            wait_for_copies<AHEAD - 1>();
            if (DIRECT) {
                wait_for_products<1>();  // of the stage that is refilled next
                fence_products();
            }
            sync<THREADS>(MULTIPLIED);  // this stage has arrived, and no warp reads the one that is refilled
            if (unit - AHEAD >= begin) {
                fetch_weights(stages[refill], unit - AHEAD);
#if DIRECT
                fetch_x(stages[refill], unit - AHEAD);
#endif
            }
            commit_copies();
#if DIRECT
            add_stage(stages[slot]);
#else
            const int next = place == 2 ? 0 : place + 1;
            if (unit - 1 >= begin) store_x(inputs[next]);
            if (unit - 2 >= begin) load_x(unit - 2);
            add_stage(stages[slot], inputs[place]);
            place = next;
#endif
            refill = refill == STAGES - 1 ? 0 : refill + 1;
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
        wait_for_products<0>();
#if !DIRECT
        keep(a);
#endif
        if (tile < first_tile) sync<ALL_THREADS>(EMPTY);
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) {
            const int m = i / 4 / N_TILES, n = i / 4 % N_TILES, token = n * 8 + member * 2 + i % 2;
            const int r = first_row + m * 64 + warp % 4 * 16 + i % 4 / 2 * 8 + quad;
            sums[token * SUM_PITCH + r] = sum[m][n][i % 4];
        }
        if (tile > last_tile) arrive(FULL);
    }
    finish_last();
}
