// y = W x for one token. The time is that of reading W, so each thread streams 16-byte chunks of W.
//
// The threads of a block split the columns of a row. A thread always has the same columns, so x (times the norm's weight)
// stays in registers. A warp reads 512 neighbouring bytes of a row: with 64 bytes of each of eight rows, as the tensor cores
// want them, the memory is slower by a seventh. A block loops over tiles of ROWS rows and loads the next tile while it sums
// the current one. The first tile is loaded before the kernel waits for the previous kernel, which writes x.
//
// Compiled for one shape, so that addresses are constants: a division or a 64-bit product per chunk is slow. Macros:
// FORMAT, X_TYPE, SCALE_TYPE; OUTPUTS, COLUMNS; GROUP (columns per scale, 0 for one scale per row), SCALE_ROWS (rows per
// scale); THREADS, ROWS, BLOCKS (per multiprocessor); flags NORM, GATE, MINIMUMS, PDL; SHARE (experts per token if W is a
// stack, else 0).

#include "types.cuh"

#define CHUNKS ((ROW_CHUNKS + THREADS - 1) / THREADS)  // per thread
#define PACKED (FORMAT == INT8 || FORMAT == INT4 || FORMAT == FP8)
// Whether both buffers are loaded before x, and each row again as soon as it is summed. That was 1 to 4 % faster in models for
// long rows of int8, and 1 to 4 % slower for short ones and for the formats that keep more of x in registers.
#define REFILL (FORMAT == INT8 && CHUNKS > 1)

#include "dots.cuh"

struct Tile {
    Chunk chunk[ROWS][CHUNKS];
#if GROUP
    u32 scale[ROWS][CHUNKS];  // as it is stored
#if MINIMUMS
    u32 minimum[ROWS][CHUNKS];
#endif
#endif
    float bias, row_scale;  // of one row, in the lanes that finish this tile
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
gemv(const void* x, const void* norm, float eps, const Chunk* weight, const void* scales, const void* minimums,
     const void* bias, const void* residual, void* y, const long* experts) {
    __shared__ float partial[2][WARPS][ROWS];
    __shared__ float squares[WARPS];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    const int base = select_expert(x, y, experts);
    // r is below ROWS already; the remainder tells the compiler so.
    auto row_of = [&](int number, int r) { return base + matrix_row(number, GATE ? r : r % ROWS); };
    auto has = [&](int i) { return (i + 1) * THREADS <= ROW_CHUNKS || thread + i * THREADS < ROW_CHUNKS; };
    // Load row r of tile `number`.
    auto fetch_row = [&](Tile& tile, int number, int r, bool valid) {
        const int row = row_of(number, r);
        const Chunk* chunks = weight + (long)row * ROW_CHUNKS + thread;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            load_chunk(tile.chunk[r][i], chunks + i * THREADS, valid && has(i));
#if GROUP
            if (!has(i)) continue;
            const int place = row / SCALE_ROWS * SCALES + (thread + i * THREADS) * WIDTH / GROUP;
            tile.scale[r][i] = load_bits<SCALE_TYPE>(scales, place);
#if MINIMUMS
            tile.minimum[r][i] = load_bits<SCALE_TYPE>(minimums, place);
#endif
#endif
        }
    };
    // Load what the lanes that finish a tile need; warps take turns at finishing, so that none falls behind.
    auto fetch_ends = [&](Tile& tile, int number, int turn) {
        tile.bias = 0.0f;
        tile.row_scale = 1.0f;
        if (warp == turn % WARPS && lane < ROWS) {
            const int row = row_of(number, lane);
            if (bias) tile.bias = load_as_float<X_TYPE>(bias, row);
#if PACKED
            if (!GROUP) tile.row_scale = load_as_float<SCALE_TYPE>(scales, row);
#endif
        }
    };

    int number = blockIdx.x, turn = 0;
    Tile even{}, odd{};  // zeros where a thread has no columns
    auto fetch = [&](Tile& tile, int number, int turn) {
        const bool valid = number < TILES;
#pragma unroll
        for (int r = 0; r < ROWS; r++) fetch_row(tile, valid ? number : 0, r, valid);
        fetch_ends(tile, valid ? number : 0, turn);
    };
    fetch(even, number, 0);
    if (REFILL) fetch(odd, number + gridDim.x, 1);
    if (!SHARE) join_stream();

    Columns mine[CHUNKS];
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int at = thread + i * THREADS;
        float value[WIDTH] = {}, gain[WIDTH] = {};
        if (has(i)) {
            load_columns(x, at, value);
            if (NORM) load_columns(norm, at, gain);
        }
#pragma unroll
        for (int j = 0; j < WIDTH; j++) {
            if (!NORM) continue;
            square = fmaf(value[j], value[j], square);
            value[j] *= gain[j];
        }
        prepare(mine[i], value);
    }
    float factor = 1.0f;
    if (NORM) {
#pragma unroll
        for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
        if (lane == 0) squares[warp] = square;
        __syncthreads();
        square = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) square += squares[w];
        factor = rsqrtf(square / COLUMNS + eps);
    }

    // Sum up a tile while the next one is loaded.
    auto sum_up = [&](Tile& tile, Tile& next) {
        const bool finishing = warp == turn % WARPS;
        float own = 0.0f;
        if (residual && finishing && lane < ROWS) own = load_as_float<X_TYPE>(residual, row_of(number, lane));
        const int later = number + 2 * (int)gridDim.x;
        if (!REFILL) fetch(next, number + gridDim.x, turn + 1);
        const float row_scale = tile.row_scale, row_bias = tile.bias;
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
#if GROUP
                sum[r] = fmaf(from_stored<SCALE_TYPE>(tile.scale[r][i]), dot(tile.chunk[r][i], mine[i]), sum[r]);
#if MINIMUMS
                sum[r] = fmaf(from_stored<SCALE_TYPE>(tile.minimum[r][i]), mine[i].sum, sum[r]);
#endif
#elif INTEGERS
                sum[r] += dot(tile.chunk[r][i], mine[i]);
#else
                sum[r] = dot(tile.chunk[r][i], mine[i], sum[r]);
#endif
            }
            if (REFILL) fetch_row(tile, later < TILES ? later : number, r, later < TILES);
        }
        if (REFILL) fetch_ends(tile, later < TILES ? later : number, turn + 2);
        // Sum over the lanes of a warp. At each exchange a lane keeps half of its rows, which saves shuffles.
        int row = 0;
#pragma unroll
        for (int offset = 16, count = ROWS; offset; offset /= 2) {
            if (count > 1) {
                count /= 2;
                const bool upper = lane & offset;
#pragma unroll
                for (int r = 0; r < count; r++) {
                    const float sent = upper ? sum[r] : sum[r + count];
                    sum[r] = (upper ? sum[r + count] : sum[r]) + __shfl_xor_sync(~0u, sent, offset);
                }
                row += upper ? count : 0;
            } else {
                sum[0] += __shfl_xor_sync(~0u, sum[0], offset);
            }
        }
        if (lane % (32 / ROWS) == 0) partial[turn % 2][warp][row] = sum[0];
        __syncthreads();
        if (finishing) {
            float value = 0.0f;
            for (int w = lane / ROWS; w < WARPS; w += 32 / ROWS) value += partial[turn % 2][w][lane % ROWS];
#pragma unroll
            for (int offset = ROWS; offset < 32; offset *= 2) value += __shfl_xor_sync(~0u, value, offset);
            value = fmaf(value, factor * row_scale, row_bias);
            if (GATE) {
                const float up = __shfl_down_sync(~0u, value, STEP);
                value = value / (1.0f + __expf(-value)) * up;
            }
            const int at = number * STEP + lane;
            if (lane < STEP && at < OUTPUTS) store_float<X_TYPE>(y, at, value + own);
        }
        number += gridDim.x;
        turn++;
        return number < TILES;
    };
    // Two named buffers alternate; copying one to the other would wait for its loads.
    while (sum_up(even, odd) && sum_up(odd, even)) {
    }
}
