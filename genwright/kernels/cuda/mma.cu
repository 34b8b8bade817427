// y = W x for up to 8 tokens and packed weights, on the tensor cores: 16 rows of W are the left matrix of mma.m16n8k16, and
// the tokens are the 8 columns of the right one. The order of columns within a product does not matter, so a lane reads 16
// consecutive bytes of two rows, and x is arranged in shared memory to match.
//
// x is divided by a power of two such that its largest value is below 2, so fp16 holds it with more bits than bf16 would;
// sums are fp32.
//
// Compiled for one shape. Macros: FORMAT, X_TYPE, SCALE_TYPE; OUTPUTS, COLUMNS; TOKENS (1 to 8); GROUP, SCALE_ROWS;
// THREADS, DEPTH (chunks in flight), BLOCKS (per multiprocessor); flags NORM, GATE, MINIMUMS, PDL; SHARE must be 0.

#define ROWS 16
#define OPERAND F16
#include "types.cuh"
#include "operands.cuh"

#define TURNS WARP_SLICES
#define X_PIECES (TURNS * WARPS * 4 * PIECES)  // per token
// A scale that four chunks share multiplies their sum; any other multiplies every weight, in fp16.
#define SHARED_SCALE (GROUP && !MINIMUMS && GROUP % (4 * WIDTH) == 0)

struct Part {  // 16 bytes of one row
    Chunk chunk;
    u32 scale, minimum;  // fp16, repeated in both halves; a shared scale is fp32
};

// Piece j of a chunk: eight weights as four pairs of fp16.
__device__ __forceinline__ void unpack(const Part& part, int j, u32 (&pairs)[4]) {
    unpack_piece<!MINIMUMS>(part.chunk, j, pairs);
#if GROUP && !SHARED_SCALE
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = MINIMUMS ? fma2(pairs[i], part.scale, part.minimum) : mul2(pairs[i], part.scale);
#endif
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
    return value;
}

__device__ __forceinline__ float max_of_warp(float value) {
#pragma unroll
    for (int offset = 16; offset; offset /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
    return value;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mma(const void* x, const void* norm, float eps, const Chunk* weight, const void* scales, const void* minimums,
    const void* bias, const void* residual, void* y) {
    // x as [TOKENS][slice][piece][lane of the quad] of 8 fp16 values, each token padded by 64 bytes against bank conflicts,
    // then zeros.
    extern __shared__ uint4 pieces[];
    constexpr int STRIDE = X_PIECES + 4;
    __shared__ float partial[2][WARPS][ROWS][TOKENS];
    __shared__ float sums[2][WARPS][TOKENS];
    __shared__ float factors[TOKENS], shrink[TOKENS];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;

    // Load this lane's chunk `turn` of the two rows of a tile.
    auto fetch = [&](Part (&parts)[2], int tile, int turn, bool more) {
        const int chunk = (turn * WARPS + warp) * 4 + member;
        const bool valid = (turn + 1) * WARPS * 4 <= ROW_CHUNKS || chunk < ROW_CHUNKS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Part& part = parts[half];
            const int row = matrix_row(tile, quad + 8 * half);
            const int first = SHARED_SCALE ? chunk - member : chunk;  // a shared scale multiplies the other lanes' chunks too
            if (!valid) {  // must be finite, because it is multiplied by an x of 0
                part.chunk = Chunk{};
                part.scale = part.minimum = 0;
                if (first >= ROW_CHUNKS) continue;
            } else {
                load_chunk(part.chunk, weight + (long)row * ROW_CHUNKS + chunk, more);
            }
#if GROUP
            const int place = row / SCALE_ROWS * SCALES + first * WIDTH / GROUP;
            if (SHARED_SCALE)
                part.scale = __float_as_int(load_as_float<SCALE_TYPE>(scales, place));
            else
                part.scale = load_pair<SCALE_TYPE>(scales, place);
#if MINIMUMS
            part.minimum = load_pair<SCALE_TYPE>(minimums, place);
#endif
#endif
        }
    };

    Part parts[DEPTH][2];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) fetch(parts[d], blockIdx.x, d, true);
    join_stream();

    // Read x times the norm's weight, first to find each token's largest value and sum of squares, then to store it as fp16 in
    // shared memory. A thread loads a piece of all tokens before it uses the first, so that it waits once.
    float squares[TOKENS] = {}, largest[TOKENS] = {};
    auto read_x = [&](bool measure) {
        for (int piece = thread; piece < X_PIECES; piece += THREADS) {
            const bool inside = COLUMNS / 8 == X_PIECES || piece < COLUMNS / 8;
            Eight<X_TYPE> stored[TOKENS], gain;
#pragma unroll
            for (int token = 0; token < TOKENS; token++)
                stored[token] = load_stored<X_TYPE>(x, (long)token * (COLUMNS / 8) + (inside ? piece : 0));
            if (NORM) gain = load_stored<X_TYPE>(norm, inside ? piece : 0);
#pragma unroll
            for (int token = 0; token < TOKENS; token++) {
                const float factor = !inside ? 0.0f : measure ? 1.0f : shrink[token];
                float values[8], gains[8];
                to_floats<X_TYPE>(stored[token], values);
                if (NORM) to_floats<X_TYPE>(gain, gains);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    values[i] *= factor;
                    squares[token] = fmaf(values[i], values[i], squares[token]);
                    if (NORM) values[i] *= gains[i];
                    largest[token] = fmaxf(largest[token], fabsf(values[i]));
                }
                if (measure) continue;
                u32 halves[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves[i]) : "f"(values[2 * i + 1]), "f"(values[2 * i]));
                const int chunk = piece / PIECES, order = (chunk / 4 * PIECES + piece % PIECES) * 4 + chunk % 4;
                pieces[token * STRIDE + order] = make_uint4(halves[0], halves[1], halves[2], halves[3]);
            }
        }
    };
    read_x(true);
#pragma unroll
    for (int token = 0; token < TOKENS; token++) {
        const float square = sum_of_warp(squares[token]), most = max_of_warp(largest[token]);
        if (lane == 0) {
            sums[0][warp][token] = square;
            sums[1][warp][token] = most;
        }
    }
    __syncthreads();
    for (int token = warp; token < TOKENS; token += WARPS) {
        const float square = sum_of_warp(lane < WARPS ? sums[0][lane][token] : 0.0f);
        const float most = max_of_warp(lane < WARPS ? sums[1][lane][token] : 0.0f);
        const u32 exponent = min(max(__float_as_int(most) >> 23, 1), 253);  // most / 2^(exponent - 127) is in [1, 2)
        shrink[token] = from_bits((254 - exponent) << 23);
        factors[token] = from_bits(exponent << 23) * (NORM ? rsqrtf(square / COLUMNS + eps) : 1.0f);
    }
    __syncthreads();
    read_x(false);
    if (thread < 4 * PIECES) pieces[TOKENS * STRIDE + thread] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    // Columns without a token read zeros.
    const uint4* own = pieces + (quad < TOKENS ? quad * STRIDE + warp * 4 * PIECES : TOKENS * STRIDE) + member;
    const int advance = quad < TOKENS ? WARPS * 4 * PIECES : 0;

    int parity = 0;
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x, parity ^= 1) {
        const int next = tile + gridDim.x;
        const bool more = next < TILES;
        float sum[4] = {};
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            Part(&here)[2] = parts[turn % DEPTH];
            if (turn * WARPS < SLICES) {
                float part[4] = {};
#pragma unroll
                for (int j = 0; j < PIECES; j++) {
                    const uint4 b = own[turn * advance + 4 * j];
                    u32 upper[4], lower[4];
                    unpack(here[0], j, upper);
                    unpack(here[1], j, lower);
                    multiply(SHARED_SCALE ? part : sum, upper[0], lower[0], upper[1], lower[1], b.x, b.y);
                    multiply(SHARED_SCALE ? part : sum, upper[2], lower[2], upper[3], lower[3], b.z, b.w);
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (SHARED_SCALE) sum[i] = fmaf(from_bits(here[i / 2].scale), part[i], sum[i]);
            }
            if (turn + DEPTH < TURNS)
                fetch(here, tile, turn + DEPTH, true);
            else
                fetch(here, more ? next : tile, turn + DEPTH - TURNS, more);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int token = 2 * member + i % 2;
            if (token < TOKENS) partial[parity][warp][quad + i / 2 * 8][token] = sum[i];
        }
        __syncthreads();
        // The warps take turns at finishing, so that none falls behind.
        for (int at = (warp + tile / gridDim.x) % WARPS * 32 + lane; at < STEP * TOKENS; at += THREADS) {
            const int output = tile * STEP + at / TOKENS, token = at % TOKENS;
            auto total = [&](int r) {
                float value = 0.0f;
#pragma unroll 4
                for (int w = 0; w < WARPS; w++) value += partial[parity][w][r][token];
                const int row = matrix_row(tile, r);
                value *= GROUP ? factors[token] : factors[token] * load_as_float<SCALE_TYPE>(scales, row);
                return bias ? value + load_as_float<X_TYPE>(bias, row) : value;
            };
            float value = total(at / TOKENS);
            if (GATE) value = value / (1.0f + __expf(-value)) * total(at / TOKENS + STEP);
            if (output >= OUTPUTS) continue;
            const long place = (long)token * OUTPUTS + output;
            if (residual) value += load_as_float<X_TYPE>(residual, place);
            store_float<X_TYPE>(y, place, value);
        }
    }
}
