// y = W x for one token. The time is that of reading W, so each thread streams 16-byte chunks of W.
//
// The threads of a block split the columns of a row. A thread always has the same columns, so x (times the norm's weight)
// stays in registers. A block loops over tiles of ROWS rows and loads the next tile while it sums the current one. The
// first tile is loaded before the kernel waits for the previous kernel, which writes x.
//
// Compiled for one shape, so that addresses are constants: a division or a 64-bit product per chunk is slow. Macros:
// FORMAT (unpacked or FP8), X_TYPE, SCALE_TYPE; OUTPUTS, COLUMNS; GROUP (columns per scale, 0 for one scale per row),
// SCALE_ROWS (rows per scale); THREADS, ROWS, BLOCKS (per multiprocessor); flags NORM, GATE, PDL; SHARE (experts per
// token if W is a stack, else 0).

#include "types.cuh"

#define CHUNKS ((ROW_CHUNKS + THREADS - 1) / THREADS)  // per thread

// The columns of x, or of the norm's weight, that belong to a chunk.
__device__ __forceinline__ void load_columns(const void* at, int chunk, float (&values)[WIDTH]) {
#if WIDTH < 8
#pragma unroll
    for (int i = 0; i < WIDTH; i++) values[i] = load_as_float<X_TYPE>(at, (long)chunk * WIDTH + i);
#else
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++)
        load_eight<X_TYPE>(at, (long)chunk * (WIDTH / 8) + i, *(float(*)[8])(values + 8 * i));
#endif
}

// sum + the dot product of one chunk with x.
__device__ __forceinline__ float dot(const Chunk& c, const float (&x)[WIDTH], float sum) {
#pragma unroll
    for (int word = 0; word < 4; word++) {
        u32 w = c.w[word];
#if FORMAT == F32
        sum = fmaf(from_bits(w), x[word], sum);
#elif FORMAT == BF16
        sum = fmaf(from_bits(w << 16), x[2 * word], sum);
        sum = fmaf(from_bits(w & 0xFFFF0000u), x[2 * word + 1], sum);
#elif FORMAT == F16
        sum = fmaf(half_to_float((u16)w), x[2 * word], sum);
        sum = fmaf(half_to_float((u16)(w >> 16)), x[2 * word + 1], sum);
#elif FORMAT == FP8
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 pair;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)(w >> 16 * i)));
            sum = fmaf(half_to_float((u16)pair), x[4 * word + 2 * i], sum);
            sum = fmaf(half_to_float((u16)(pair >> 16)), x[4 * word + 2 * i + 1], sum);
        }
#else
#error "gemv.cu does not read INT8 and INT4; use integer_mma.cu"
#endif
    }
    return sum;
}

struct Tile {
    Chunk chunk[ROWS][CHUNKS];
#if GROUP
    float scale[ROWS][CHUNKS];
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
    auto fetch = [&](Tile& tile, int number, int turn, bool valid) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = row_of(number, r);
            const Chunk* chunks = weight + (long)row * ROW_CHUNKS + thread;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                load_chunk(tile.chunk[r][i], chunks + i * THREADS, valid && has(i));
#if GROUP
                if (!has(i)) continue;
                const int place = row / SCALE_ROWS * SCALES + (thread + i * THREADS) * WIDTH / GROUP;
                tile.scale[r][i] = load_as_float<SCALE_TYPE>(scales, place);
#endif
            }
        }
        tile.bias = 0.0f;
        tile.row_scale = 1.0f;
        if (warp == turn % WARPS && lane < ROWS) {
            const int row = row_of(number, lane);
            if (bias) tile.bias = load_as_float<X_TYPE>(bias, row);
#if FORMAT == FP8
            if (!GROUP) tile.row_scale = load_as_float<SCALE_TYPE>(scales, row);
#endif
        }
    };

    int number = blockIdx.x, turn = 0;
    Tile even{}, odd{};  // zeros where a thread has no columns
    fetch(even, number, 0, true);  // the grid has at most TILES blocks
    if (!SHARE) join_stream();

    float mine[CHUNKS][WIDTH];
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
            if (NORM) square = fmaf(value[j], value[j], square);
            mine[i][j] = NORM ? value[j] * gain[j] : value[j];
        }
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

    auto sum_up = [&](Tile& now, Tile& next) {
        const bool finishing = warp == turn % WARPS;
        float own = 0.0f;
        if (residual && finishing && lane < ROWS) own = load_as_float<X_TYPE>(residual, row_of(number, lane));
        const bool more = number + (int)gridDim.x < TILES;
        fetch(next, more ? number + gridDim.x : number, turn + 1, more);
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
#if GROUP
                sum[r] = fmaf(now.scale[r][i], dot(now.chunk[r][i], mine[i], 0.0f), sum[r]);
#else
                sum[r] = dot(now.chunk[r][i], mine[i], sum[r]);
#endif
            }
        }
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
        if (finishing) {  // the warps take turns at this, so that none falls behind
            float value = 0.0f;
            for (int w = lane / ROWS; w < WARPS; w += 32 / ROWS) value += partial[turn % 2][w][lane % ROWS];
#pragma unroll
            for (int offset = ROWS; offset < 32; offset *= 2) value += __shfl_xor_sync(~0u, value, offset);
            value = fmaf(value, factor * now.row_scale, now.bias);
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
