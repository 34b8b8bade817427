// y = W x for 1 to 8 tokens and weights in bit planes (quant/bit_planes.py), on the integer tensor cores:
// 16 rows of W are the left matrix of mma.m16n8k32, and x, as two 8-bit digits, is in the columns of the right one.
//
// A lane has a chunk of 32 columns of two rows, and the four lanes of a quad have four chunks of the same rows. The right
// matrix has two columns (one per digit) for each of the four lanes, with zeros in the positions of the other lanes' weights.
// Each lane so gets the exact integer sums of its own chunk and multiplies them by its own scales; a chunk may have two
// groups, whose sums are taken one after the other. The codes are unpacked once for all tokens.
//
// Compiled for one shape. Macros: X_TYPE, SCALE_TYPE (PLANES for bytes with a factor per 256 columns); OUTPUTS, COLUMNS;
// BITS (2 to 6), GROUP (16 or 32 columns per scale), ZERO, MINIMUMS; TABLE (1 if codes are numbers of a table, with its
// signed bytes in TABLE0 to TABLE3); TOKENS; THREADS, DEPTH (chunks in flight), BLOCKS (per multiprocessor); flags NORM,
// GATE, PDL; SHARE (experts per token if W is a stack, else 0).

#define ROWS 16
#define FORMAT 6
#include "types.cuh"

#define NIBBLES (BITS >= 4)
#define PAIRS (BITS / 2 % 2)
#define SINGLES (BITS % 2)
#define GROUPS (32 / GROUP)  // per chunk
#define PER_GROUP (1 + MINIMUMS)
#define SCALE_BYTES (GROUPS * PER_GROUP * (SCALE_TYPE == PLANES ? 1 : 2))  // per chunk: 1, 2 or 4
#define TURNS WARP_SLICES
#define X_CHUNKS (TURNS * WARPS * 4)
#define VECTORS 2            // 16-byte vectors per digit of a chunk
#define LARGEST 32512.0f     // 127 * 256

__device__ __forceinline__ void multiply(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if TABLE
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float larger(float a, float b) {  // NaN if either is NaN
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

// Predicated, as load_chunk; these lines are read by several warps, so they stay in the L1 cache.
__device__ __forceinline__ void load_word(u32& word, const u32* at, bool valid) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1];}"
                 : "+r"(word)
                 : "l"(at), "r"((u32)valid));
}

__device__ __forceinline__ void load_words(u32 (&words)[2], const u32* at, bool valid) {
    asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(words[0]), "+r"(words[1])
                 : "l"(at), "r"((u32)valid));
}

struct Part {  // a chunk of one row, with the stored bits of its scales and their factors
    Chunk nibbles;
    u32 pairs[2], singles, scales, factors;
};

__device__ __forceinline__ u32 shifted(u32 word, int left) { return left >= 0 ? word << left : word >> -left; }

// Eight codes of word j: four in the bytes of `even`, four in those of `odd`.
__device__ __forceinline__ void unpack(const Part& part, int j, u32& even, u32& odd) {
#if TABLE
    const u32 word = part.nibbles.w[j], at = word & 0x77777777u, upper = (word >> 1 & 0x44444444u) | 0x32103210u;
    even = __byte_perm(__byte_perm(TABLE0, TABLE1, at), __byte_perm(TABLE2, TABLE3, at), upper);
    odd = __byte_perm(__byte_perm(TABLE0, TABLE1, at >> 16), __byte_perm(TABLE2, TABLE3, at >> 16), upper >> 16);
#else
    constexpr int PAIRS_AT = NIBBLES ? 4 : 0, SINGLES_AT = NIBBLES ? 4 : 2;
    even = NIBBLES ? part.nibbles.w[j] & 0x0F0F0F0Fu : 0;
    odd = NIBBLES ? part.nibbles.w[j] >> 4 & 0x0F0F0F0Fu : 0;
    if (PAIRS) {
        even |= shifted(part.pairs[j / 2], PAIRS_AT - j % 2 * 4) & 0x03030303u << PAIRS_AT;
        odd |= shifted(part.pairs[j / 2], PAIRS_AT - j % 2 * 4 - 2) & 0x03030303u << PAIRS_AT;
    }
    if (SINGLES) {
        even |= shifted(part.singles, SINGLES_AT - 2 * j) & 0x01010101u << SINGLES_AT;
        odd |= shifted(part.singles, SINGLES_AT - 2 * j - 1) & 0x01010101u << SINGLES_AT;
    }
#endif
}

// The scale (side 0) or minimum (side 1) of a group of the chunk.
__device__ __forceinline__ float scale_of(const Part& part, int group, int side) {
    const int at = group * PER_GROUP + side;
    if (SCALE_TYPE != PLANES) return from_stored<SCALE_TYPE == PLANES ? F16 : SCALE_TYPE>(part.scales >> 16 * at & 0xFFFF);
    // A byte in the mantissa of 2^23 is converted without an instruction that has a sixteenth of the throughput.
    const float value = from_bits(__byte_perm(part.scales ^ 0x80808080u, 0x4B000000u, 0x7440 + at)) - 8388736.0f;
    return value * half_to_float((u16)(part.factors >> 16 * side));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
planes_mma(const void* x, const void* norm, float eps, const Chunk* nibbles, const u32* pairs, const u32* singles,
           const void* scales, const void* factors, const void* bias, const void* residual, void* y, int y_stride,
           const long* experts) {
    // x as [token][slice][vector][lane of the quad][digit] of 16 columns, then one vector of zeros, then the scale of each
    // chunk and the sum of each group.
    extern __shared__ uint4 columns[];
    constexpr int STRIDE = X_CHUNKS * VECTORS * 2, ZEROS = TOKENS * STRIDE;
    float* const x_scales = (float*)(columns + ZEROS + 1);
    float* const x_sums = x_scales + TOKENS * X_CHUNKS;
    __shared__ float partial[2][WARPS][ROWS][TOKENS];
    __shared__ float squares[WARPS][TOKENS];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;

    const int base = select_expert(x, y, experts);
    auto row_of = [&](int tile, int r) { return base + matrix_row(tile, r); };
    // Load this lane's chunk `turn` of the two rows of a tile.
    auto fetch = [&](Part (&parts)[2], int tile, int turn, bool more) {
        int chunk = (turn * WARPS + warp) * 4 + member;
        const bool valid = X_CHUNKS == ROW_CHUNKS || chunk < ROW_CHUNKS;
        chunk = valid ? chunk : 0;  // its x is 0
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Part& part = parts[half];
            const u32 at = row_of(tile, quad + 8 * half) * ROW_CHUNKS + chunk;
            if (NIBBLES) load_chunk(part.nibbles, nibbles + at, more && valid);
            if (PAIRS) load_words(part.pairs, pairs + 2 * at, more && valid);
            if (SINGLES) load_word(part.singles, singles + at, more && valid);
            part.scales = SCALE_BYTES == 1   ? ((const u8*)scales)[at]
                          : SCALE_BYTES == 2 ? ((const u16*)scales)[at]
                                             : ((const u32*)scales)[at];
            if (SCALE_TYPE == PLANES)
                part.factors = MINIMUMS ? ((const u32*)factors)[at / 8] : ((const u16*)factors)[at / 8];
        }
    };

    Part parts[DEPTH][2] = {};
#pragma unroll
    for (int d = 0; d < DEPTH; d++) fetch(parts[d], blockIdx.x, d, true);
    if (!SHARE) join_stream();

#pragma unroll 1
    for (int token = 0; token < TOKENS; token++) {
        float square = 0.0f;
        for (int piece = thread; piece - thread < X_CHUNKS * 4; piece += THREADS) {
            float values[8] = {}, gain[8] = {}, largest = 0.0f;
            if (piece < COLUMNS / 8) {
                load_eight<X_TYPE>(x, (long)token * (COLUMNS / 8) + piece, values);
                if (NORM) load_eight<X_TYPE>(norm, piece, gain);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                square = fmaf(values[i], values[i], square);
                if (NORM) values[i] *= gain[i];
                largest = larger(largest, fabsf(values[i]));
            }
            largest = larger(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = larger(largest, __shfl_xor_sync(~0u, largest, 2));
            const float stretch = largest > 1e-33f ? LARGEST / largest : 0.0f;  // the scale keeps a NaN
            int number[8], sum = 0;  // two digits in the two lowest bytes, the lower digit plus 128
#pragma unroll
            for (int i = 0; i < 8; i++) {
                number[i] = __float2int_rn(values[i] * stretch) + 128;
                sum += number[i] - 128;
            }
            sum += __shfl_xor_sync(~0u, sum, 1);
            if (GROUP == 32) sum += __shfl_xor_sync(~0u, sum, 2);
            auto gather = [&](int a, int b, int c, int d, int bytes) {  // one digit of four columns
                return __byte_perm(__byte_perm(number[a], number[b], bytes), __byte_perm(number[c], number[d], bytes),
                                   0x5410);
            };
            const int chunk = piece / 4, j = piece % 4;
            if (chunk >= X_CHUNKS) continue;
            uint2* to = (uint2*)(columns + token * STRIDE + ((chunk / 4 * VECTORS + j / 2) * 4 + chunk % 4) * 2) + j % 2;
#if TABLE  // nibbles 0 to 3 of a word are its weights 0, 2, 4, 6
            to[0] = make_uint2(gather(0, 2, 4, 6, 0x0051), gather(1, 3, 5, 7, 0x0051));
            to[2] = make_uint2(gather(0, 2, 4, 6, 0x0040) ^ 0x80808080u, gather(1, 3, 5, 7, 0x0040) ^ 0x80808080u);
#else  // nibbles 0, 2, 4, 6 of a word are its weights 0, 4, 1, 5
            to[0] = make_uint2(gather(0, 4, 1, 5, 0x0051), gather(2, 6, 3, 7, 0x0051));
            to[2] = make_uint2(gather(0, 4, 1, 5, 0x0040) ^ 0x80808080u, gather(2, 6, 3, 7, 0x0040) ^ 0x80808080u);
#endif
            if (j == 0) x_scales[token * X_CHUNKS + chunk] = largest / LARGEST;
            if (j % (GROUP / 8) == 0) x_sums[(token * X_CHUNKS + chunk) * GROUPS + j / 2] = sum;
        }
#pragma unroll
        for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
        if (lane == 0) squares[warp][token] = square;
    }
    if (thread == 0) columns[ZEROS] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    // This lane supplies one of the eight columns, for the rows of its own chunk: zeros if the column is another lane's.
    const bool own = quad / 2 == member;

    int parity = 0;
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x, parity ^= 1) {
        const int next = tile + gridDim.x;
        const bool more = next < TILES;
        float sum[TOKENS][2] = {};
#pragma unroll (TOKENS > 1 ? 1 : TURNS)  // with several tokens, registers would spill
        for (int first = 0; first < TURNS; first += DEPTH)
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            Part(&here)[2] = parts[d];
            const int turn = first + d, slice = turn * WARPS + warp;
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                int exact[TOKENS][4] = {};
#pragma unroll
                for (int vector = group; vector < VECTORS; vector += GROUPS) {
                    u32 a[2][4];
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        unpack(here[0], 2 * vector + j, a[j][0], a[j][2]);
                        unpack(here[1], 2 * vector + j, a[j][1], a[j][3]);
                    }
#pragma unroll
                    for (int token = 0; token < TOKENS; token++) {
                        const int place = token * STRIDE + ((slice * VECTORS + vector) * 4 + member) * 2 + quad % 2;
                        const uint4 b = columns[own ? place : ZEROS];
                        multiply(exact[token], a[0], b.x, b.y);
                        multiply(exact[token], a[1], b.z, b.w);
                    }
                }
                float scale[2], minimum[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    scale[half] = scale_of(here[half], group, 0);
                    minimum[half] = MINIMUMS ? scale_of(here[half], group, MINIMUMS) : -ZERO * scale[half];
                }
#pragma unroll
                for (int token = 0; token < TOKENS; token++) {
                    const int chunk = token * X_CHUNKS + slice * 4 + member;
                    const float x_scale = x_scales[chunk], x_sum = x_sums[chunk * GROUPS + group];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float value = scale[half] * (float)(exact[token][2 * half] * 256 + exact[token][2 * half + 1]);
                        if (MINIMUMS || ZERO) value = fmaf(minimum[half], x_sum, value);
                        sum[token][half] = fmaf(x_scale, value, sum[token][half]);
                    }
                }
            }
            const bool last = turn + DEPTH >= TURNS;
            fetch(here, last && more ? next : tile, last ? turn + DEPTH - TURNS : turn + DEPTH, !last || more);
        }
#pragma unroll
        for (int token = 0; token < TOKENS; token++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float value = sum[token][half];
                value += __shfl_xor_sync(~0u, value, 1);
                value += __shfl_xor_sync(~0u, value, 2);
                if (member == 0) partial[parity][warp][quad + 8 * half][token] = value;
            }
        }
        __syncthreads();
        // The warps take turns at finishing, so that none falls behind.
        for (int at = (warp + tile / gridDim.x) % WARPS * 32 + lane; at < STEP * TOKENS; at += THREADS) {
            const int output = tile * STEP + at / TOKENS, token = at % TOKENS;
            float factor = 1.0f;
            if (NORM) {
                float all = 0.0f;
#pragma unroll 4
                for (int w = 0; w < WARPS; w++) all += squares[w][token];
                factor = rsqrtf(all / COLUMNS + eps);
            }
            auto total = [&](int r) {
                float value = 0.0f;
#pragma unroll 4
                for (int w = 0; w < WARPS; w++) value += partial[parity][w][r][token];
                return bias ? fmaf(value, factor, load_as_float<X_TYPE>(bias, row_of(tile, r))) : value * factor;
            };
            float value = total(at / TOKENS);
            if (GATE) value = value / (1.0f + __expf(-value)) * total(at / TOKENS + STEP);
            if (output >= OUTPUTS) continue;
            if (residual) value += load_as_float<X_TYPE>(residual, (long)token * OUTPUTS + output);
            store_float<X_TYPE>(y, (long)token * y_stride + output, value);
        }
    }
}
