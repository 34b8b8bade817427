// y = W x for one token and integer weights, on the integer tensor cores: 16 rows of W are the left matrix of mma.m16n8k32,
// and x, as two 8-bit digits, is in the columns of the right one.
//
// A lane reads 16 consecutive bytes (a chunk) of two rows; the four lanes of a quad read four chunks of the same rows. The
// right matrix has two columns (one per digit) for each of the four lanes, with zeros in the positions of the other lanes'
// weights. Each lane so gets the exact integer sums of its own chunk and multiplies them by its own scale. The columns of x
// in a chunk share a scale that maps the largest to 127 * 256: x has 16 bits, more than bf16 except for values much smaller
// than the largest.
//
// Compiled for one shape. Macros: FORMAT (INT8 or INT4), X_TYPE, SCALE_TYPE; OUTPUTS, COLUMNS; GROUP (columns per scale, 0
// for one scale per row); THREADS, DEPTH (chunks in flight), BLOCKS (per multiprocessor); flags NORM, GATE, MINIMUMS,
// PDL; SHARE (experts per token if W is a stack, else 0).

#define ROWS 16
#include "types.cuh"

#define TURNS WARP_SLICES
#define X_SLICES (TURNS * WARPS)
#define VECTORS (WIDTH / 16)  // 16-byte vectors per digit of a chunk
#define LARGEST 32512.0f      // 127 * 256

__device__ __forceinline__ void multiply(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if MINIMUMS
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float larger(float a, float b) {  // NaN if either is NaN
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

struct Part {  // 16 bytes of one row, with the stored bits of their scale and minimum
    Chunk chunk;
    u32 scale, minimum;
};

// The bytes of piece j that match the even and odd words of x. INT8: the values. INT4: the signed values times 16, or the
// unsigned values if there are minimums.
__device__ __forceinline__ void unpack(const Chunk& chunk, int j, u32& even, u32& odd) {
#if FORMAT == INT8
    even = chunk.w[2 * j];
    odd = chunk.w[2 * j + 1];
#elif MINIMUMS
    even = chunk.w[j] & 0x0F0F0F0Fu;
    odd = chunk.w[j] >> 4 & 0x0F0F0F0Fu;
#else
    even = (chunk.w[j] << 4 & 0xF0F0F0F0u) ^ 0x80808080u;
    odd = (chunk.w[j] & 0xF0F0F0F0u) ^ 0x80808080u;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
integer_mma(const void* x, const void* norm, float eps, const Chunk* weight, const void* scales, const void* minimums,
       const void* bias, const void* residual, void* y, const long* experts) {
    // x as [slice][vector][lane of the quad][digit] of 16 columns, then one vector of zeros, then each chunk's scale and sum.
    extern __shared__ uint4 columns[];
    constexpr int ZEROS = X_SLICES * VECTORS * 8;
    float* const x_scales = (float*)(columns + ZEROS + 1);
    float* const x_sums = x_scales + X_SLICES * 4;
    __shared__ float partial[2][WARPS][ROWS];
    __shared__ float squares[WARPS];
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;

    const int base = select_expert(x, y, experts);
    auto row_of = [&](int tile, int r) { return base + matrix_row(tile, r); };
    // Load this lane's chunk `turn` of the two rows of a tile.
    auto fetch = [&](Part (&parts)[2], int tile, int turn, bool more) {
        const int chunk = (turn * WARPS + warp) * 4 + member;
        const bool valid = X_SLICES * 4 == ROW_CHUNKS || chunk < ROW_CHUNKS;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Part& part = parts[half];
            const int row = row_of(tile, quad + 8 * half);
            load_chunk(part.chunk, weight + (long)row * ROW_CHUNKS + chunk, more && valid);
#if GROUP
            if (!valid) continue;
            const long place = (long)row * SCALES + chunk * WIDTH / GROUP;
            part.scale = load_bits<SCALE_TYPE>(scales, place);
#if MINIMUMS
            part.minimum = load_bits<SCALE_TYPE>(minimums, place);
#endif
#endif
        }
    };

    Part parts[DEPTH][2] = {};
#pragma unroll
    for (int d = 0; d < DEPTH; d++) fetch(parts[d], blockIdx.x, d, true);
    if (!SHARE) join_stream();

    float square = 0.0f;
    for (int piece = thread; piece - thread < X_SLICES * 4 * PIECES; piece += THREADS) {
        float values[8] = {}, gain[8] = {}, largest = 0.0f, sum = 0.0f;
        if (piece < COLUMNS / 8) {
            load_eight<X_TYPE>(x, piece, values);
            if (NORM) load_eight<X_TYPE>(norm, piece, gain);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            square = fmaf(values[i], values[i], square);
            if (NORM) values[i] *= gain[i];
            largest = larger(largest, fabsf(values[i]));
            sum += values[i];
        }
#pragma unroll
        for (int offset = 1; offset < PIECES; offset *= 2) {
            largest = larger(largest, __shfl_xor_sync(~0u, largest, offset));
            if (MINIMUMS) sum += __shfl_xor_sync(~0u, sum, offset);
        }
        const float stretch = largest > 1e-33f ? LARGEST / largest : 0.0f;  // the scale keeps a NaN
        u32 number[8];  // two digits in the two lowest bytes, the lower digit plus 128
#pragma unroll
        for (int i = 0; i < 8; i++) number[i] = __float2int_rn(values[i] * stretch) + 128;
        auto gather = [&](int a, int b, int c, int d, int bytes) {  // one digit of four columns
            return __byte_perm(__byte_perm(number[a], number[b], bytes), __byte_perm(number[c], number[d], bytes), 0x5410);
        };
        const int chunk = piece / PIECES, j = piece % PIECES;
        if (chunk < X_SLICES * 4) {
            uint2* to = (uint2*)(columns + ((chunk / 4 * VECTORS + j / 2) * 4 + chunk % 4) * 2) + j % 2;
#if FORMAT == INT4  // nibbles 0, 2, 4, 6 of a word are its weights 0, 4, 1, 5
            to[0] = make_uint2(gather(0, 4, 1, 5, 0x0051), gather(2, 6, 3, 7, 0x0051));
            to[2] = make_uint2(gather(0, 4, 1, 5, 0x0040) ^ 0x80808080u, gather(2, 6, 3, 7, 0x0040) ^ 0x80808080u);
#else
            to[0] = make_uint2(gather(0, 1, 2, 3, 0x0051), gather(4, 5, 6, 7, 0x0051));
            to[2] = make_uint2(gather(0, 1, 2, 3, 0x0040) ^ 0x80808080u, gather(4, 5, 6, 7, 0x0040) ^ 0x80808080u);
#endif
            if (j == 0) {
                x_scales[chunk] = largest / (FORMAT == INT4 && !MINIMUMS ? 16 * LARGEST : LARGEST);
                if (MINIMUMS) x_sums[chunk] = sum;
            }
        }
    }
#pragma unroll
    for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
    if (lane == 0) squares[warp] = square;
    if (thread == 0) columns[ZEROS] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    // This lane supplies one of the eight columns, for the rows of its own chunk: zeros if the column is another lane's.
    const bool own = quad / 2 == member;

    int parity = 0;
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x, parity ^= 1) {
        const int next = tile + gridDim.x;
        const bool more = next < TILES;
        float sum[2] = {};
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            Part(&here)[2] = parts[turn % DEPTH];
            const int slice = turn * WARPS + warp;
            int exact[4] = {};
#pragma unroll
            for (int vector = 0; vector < VECTORS; vector++) {
                const uint4 b = columns[own ? ((slice * VECTORS + vector) * 4 + member) * 2 + quad % 2 : ZEROS];
                u32 even[2], odd[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    unpack(here[0].chunk, 2 * vector + j, even[0], odd[0]);
                    unpack(here[1].chunk, 2 * vector + j, even[1], odd[1]);
                    multiply(exact, even[0], even[1], odd[0], odd[1], j ? b.z : b.x, j ? b.w : b.y);
                }
            }
            const float scale = x_scales[slice * 4 + member];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float value = (float)(exact[2 * half] * 256 + exact[2 * half + 1]);
                sum[half] = fmaf(GROUP ? scale * from_stored<SCALE_TYPE>(here[half].scale) : scale, value, sum[half]);
                if (MINIMUMS)
                    sum[half] = fmaf(x_sums[slice * 4 + member], from_stored<SCALE_TYPE>(here[half].minimum), sum[half]);
            }
            if (turn + DEPTH < TURNS)
                fetch(here, tile, turn + DEPTH, true);
            else
                fetch(here, more ? next : tile, turn + DEPTH - TURNS, more);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
            sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
            if (member == 0) partial[parity][warp][quad + 8 * half] = sum[half];
        }
        __syncthreads();
        // The warps take turns at finishing, so that none falls behind.
        if (warp == tile / gridDim.x % WARPS && lane < STEP && tile * STEP + lane < OUTPUTS) {
            float factor = 1.0f;
            if (NORM) {
                float all = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) all += squares[w];
                factor = rsqrtf(all / COLUMNS + eps);
            }
            auto total = [&](int r) {
                float value = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) value += partial[parity][w][r];
                const int row = row_of(tile, r);
                value *= GROUP ? factor : factor * load_as_float<SCALE_TYPE>(scales, row);
                return bias ? value + load_as_float<X_TYPE>(bias, row) : value;
            };
            float value = total(lane);
            if (GATE) value = value / (1.0f + __expf(-value)) * total(lane + STEP);
            const int output = tile * STEP + lane;
            if (residual) value += load_as_float<X_TYPE>(residual, output);
            store_float<X_TYPE>(y, output, value);
        }
    }
}
