// y = W x for up to 64 tokens and packed weights, on the tensor cores (a skinny GEMM): 16 rows of W are the left matrix of
// mma.m16n8k16, and eight tokens the right one. A lane unpacks a weight once and multiplies it with every token.
//
// A stage is K_TILE columns of a block's rows: 16 bytes (a chunk) per lane, row and slice of four chunks, and x of these
// columns, which all warps share. `cp.async` keeps STAGES - 1 stages in flight. A lane copies the weights that it
// multiplies itself, so only x needs a barrier. x stays in its own type; weights are rounded to it, as in triton/matmul.
//
// Work is split as in stream-K (Osama et al., 2023): the stages of all tiles of rows are one long list, of which each block
// takes an equal part, so that any shape fills all multiprocessors. Blocks that share a tile write fp32 sums, and the last
// one to arrive adds them, in the order of the blocks.
//
// Counts, for int4 in groups of 32, bf16 and T tokens, per 16 x 128 weights of a warp (1,152 bytes with their scales; at 4.1 TB/s
// a multiprocessor gets 27 million of these per second):
// - Instructions: 72 to unpack, T to multiply, T / 2 / M_TILES to load x; in all 160 with 16 tokens and M_TILES 1 (K_TILE 256),
//   147 with M_TILES 2, 227 with 64 tokens and M_TILES 2. In that time 250 can be issued.
// - Tensor cores: T mma. With 64 tokens 4.1 TB/s would need 930 TFLOP/s, and mma.sync reaches about 600.
// - Shared memory reads: 256 T / M_TILES bytes for x; with 64 tokens and M_TILES 1 they take longer than the mma.
// - In flight: some 40 KB per multiprocessor are needed for 4.1 TB/s; a stage of 128 rows and 128 columns has 8 KiB.
// - L2 reads of x: T / 36 times the weights' bytes with tiles of 128 rows, half of that with 256.
// - Sums of shared tiles: T / 2 KiB per 128 rows from each of a tile's blocks (132 / tiles), read by one of them.
//
// Compiled for one shape. Macros: FORMAT (packed), X_TYPE (F16 or BF16), SCALE_TYPE; OUTPUTS, COLUMNS; GROUP, SCALE_ROWS; N_TILES
// (of 8 tokens), M_TILES (of 16 rows, per warp), K_TILE (a multiple of 128), STAGES, THREADS, BLOCKS (per
// multiprocessor); flags GATE, MINIMUMS, PDL.

#define ROWS 16
#define SHARE 0
#define OPERAND X_TYPE
#include "types.cuh"
#include "operands.cuh"

#define TOKENS (8 * N_TILES)
#define CHUNKS (K_TILE / 4 / WIDTH)  // of a stage, per lane and row
#define SPAN 128                     // columns whose products are summed before a shared scale multiplies them
#define SPAN_CHUNKS (SPAN / 4 / WIDTH)
#define STEPS ((COLUMNS + K_TILE - 1) / K_TILE)
#define BLOCK_TILES (WARPS * M_TILES)
#define ROWS_AFTER(m, half) (GATE ? 8 * (m) + (half) * OUTPUTS : 16 * (m) + 8 * (half))  // the lane's first row
#define UNITS ((TILES + BLOCK_TILES - 1) / BLOCK_TILES * STEPS)  // a unit is one stage of one tile of rows
// A scale that a whole span shares multiplies its sum; any other multiplies every weight.
#define SHARED_SCALE (GROUP && !MINIMUMS && GROUP % SPAN == 0)
#define SCALED (GROUP && !SHARED_SCALE)
#define SCALE_BYTES (SCALE_TYPE == F32 ? 4 : 2)

struct Stage {
    Chunk weight[CHUNKS][M_TILES][2][THREADS];
    // Pieces of eight columns: [chunk][j] of all four lanes of a quad, which are neighbours. Odd tokens have them four places
    // away from where even tokens have them, so that eight lanes (two tokens) read from different banks.
    uint4 x[TOKENS][K_TILE / 8];
#if GROUP
    u32 scale[CHUNKS][M_TILES][2][THREADS];  // the aligned word that contains it
#if MINIMUMS
    u32 minimum[CHUNKS][M_TILES][2][THREADS];
#endif
#endif
};

__device__ __forceinline__ void copy_chunk(void* to, const void* from, bool valid) {  // zeros where not valid
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_word(void* to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void wait_for_oldest() {  // of STAGES - 1 groups of copies
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
}

__device__ __forceinline__ float from_word(u32 word, int index) {  // element `index` of an array, in its aligned word
    return from_stored<SCALE_TYPE>(SCALE_TYPE == F32 ? word : index % 2 ? word >> 16 : word & 0xFFFFu);
}

// Read anew for what is done once per tile, because the compiler would compute its addresses before the loop and spill them.
__device__ __forceinline__ int read_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// If there is room, registers are left for a block of the next kernel, which loads its first weights meanwhile.
#define ROOM (THREADS * BLOCKS < 512 && (M_TILES + 1) * N_TILES * (SHARED_SCALE ? 2 : 1) < 16)
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS + ROOM)
skinny(const void* x, const Chunk* weight, const void* scales, const void* minimums, const void* bias, const void* residual,
       void* y, float4* parts, int* arrivals, int tokens) {
    extern __shared__ uint4 memory[];
    Stage* const stages = (Stage*)memory;
    __shared__ bool last;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, quad = lane / 4, member = lane % 4;
    auto first_unit = [&](int block) { return block * UNITS / (int)gridDim.x; };
    auto block_of = [&](int unit) { return ((unit + 1) * (int)gridDim.x - 1) / UNITS; };
    const int begin = first_unit(blockIdx.x), end = first_unit(blockIdx.x + 1);

    // A lane's first output of a tile; its other rows are a constant number of rows away.
    auto output_of = [&](int tile) { return (tile * BLOCK_TILES + warp * M_TILES) * STEP + quad; };
    auto scale_index = [&](int row, int step, int c) {
        const int chunk = (step * CHUNKS + c) * 4 + (SHARED_SCALE ? 0 : member);
        return row / SCALE_ROWS * SCALES + chunk * WIDTH / (GROUP ? GROUP : 1);
    };
    auto fetch_weights = [&](Stage& stage, int unit) {
        const int step = (u32)unit % STEPS, output = output_of((u32)unit / STEPS), first = step * CHUNKS * 4 + member;
        const Chunk* const from = weight + (long)output * ROW_CHUNKS + first;
#pragma unroll
        for (int i = 0; i < CHUNKS * M_TILES * 2; i++) {
            const int c = i / 2 / M_TILES, m = i / 2 % M_TILES, half = i % 2, rows = ROWS_AFTER(m, half);
            const bool inside = OUTPUTS % (BLOCK_TILES * STEP) == 0 || output + (GATE ? 8 * m : rows) < OUTPUTS;
            const bool valid = inside && (COLUMNS % K_TILE == 0 || first + 4 * c < ROW_CHUNKS);
            copy_chunk(&stage.weight[c][m][half][thread], from + (long)rows * ROW_CHUNKS + 4 * c, valid);
#if GROUP
            if (SHARED_SCALE && c % SPAN_CHUNKS) continue;
            const bool scaled = SHARED_SCALE ? inside && first - member + 4 * c < ROW_CHUNKS : valid;
            constexpr bool SAME_ALIGNMENT = SCALE_ROWS == 1 && 8 * SCALES * SCALE_BYTES % 4 == 0 && !(GATE && OUTPUTS % 8);
            long at = (long)scale_index(SAME_ALIGNMENT ? output : output + rows, step, c) * SCALE_BYTES & ~3L;
            if (SAME_ALIGNMENT) at += (long)rows * SCALES * SCALE_BYTES;
            copy_word(&stage.scale[c][m][half][thread], (const char*)scales + at, scaled);
#if MINIMUMS
            copy_word(&stage.minimum[c][m][half][thread], (const char*)minimums + at, scaled);
#endif
#endif
        }
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
            copy_chunk(&stage.x[token][order ^ (token % 2 * 4)], (const uint4*)x + (long)token * (COLUMNS / 8) + piece, valid);
        }
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (begin + s < end) fetch_weights(stages[s], begin + s);
    join_stream();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (begin + s < end) fetch_x(stages[s], begin + s);
        commit_copies();
    }

    float sum[M_TILES][N_TILES][4] = {};
    auto add_stage = [&](const Stage& stage, int output, int step) {
        const uint4* const own = stage.x[quad] + member;
        const uint4* const pieces[2] = {own + quad % 2 * 4, own + 4 - quad % 2 * 4};  // with an even and an odd chunk * PIECES + j
#pragma unroll
        for (int span = 0; span < CHUNKS; span += SPAN_CHUNKS) {
            float part[M_TILES][N_TILES][4] = {};
#pragma unroll
            for (int c = span; c < span + SPAN_CHUNKS; c++) {
                Chunk chunk[M_TILES][2];
                Factors factors[M_TILES][2];
#pragma unroll
                for (int i = 0; i < 2 * M_TILES; i++) {
                    const int m = i / 2, half = i % 2;
                    chunk[m][half] = stage.weight[c][m][half][thread];
                    float scale = 1.0f, minimum = 0.0f;
#if SCALED
                    const int index = scale_index(output + ROWS_AFTER(m, half), step, c);
                    scale = from_word(stage.scale[c][m][half][thread], index);
#if MINIMUMS
                    minimum = from_word(stage.minimum[c][m][half][thread], index);
#endif
#endif
                    factors[m][half] = factors_of(scale, minimum);
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
                            auto& to = SHARED_SCALE ? part[m][n] : sum[m][n];
                            multiply(to, a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1], b.x, b.y);
                            multiply(to, a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3], b.z, b.w);
                        }
                    }
                }
            }
#if SHARED_SCALE
#pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                float factor[2];
#pragma unroll
                for (int half = 0; half < 2; half++)
                    factor[half] =
                        from_word(stage.scale[span][m][half][thread], scale_index(output + ROWS_AFTER(m, half), step, span));
#pragma unroll
                for (int i = 0; i < 4 * N_TILES; i++)
                    sum[m][i / 4][i % 4] = fmaf(factor[i % 4 / 2], part[m][i / 4][i % 4], sum[m][i / 4][i % 4]);
            }
#endif
        }
    };

    // The sums of a tile that several blocks share are in memory as [block][its first or its last tile][m][n][thread].
    auto slot_of = [&](int block, int tile) { return 2 * block + (first_unit(block) < tile * STEPS); };
    auto part_at = [&](int slot, int i) { return parts + (long)(slot * M_TILES * N_TILES + i) * THREADS + read_thread(); };
    // Whether this block has the whole sums of a tile: it shares the tile with no other block, or is the last one to arrive.
    auto complete = [&](int tile) {
        const int first = block_of(tile * STEPS), blocks = block_of(tile * STEPS + STEPS - 1) - first + 1;
        if (blocks == 1) return true;
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES; i++) {
            float(&s)[4] = sum[i / N_TILES][i % N_TILES];
            *part_at(slot_of(blockIdx.x, tile), i) = make_float4(s[0], s[1], s[2], s[3]);
#pragma unroll
            for (int k = 0; k < 4; k++) s[k] = 0.0f;
        }
        __threadfence();
        __syncthreads();
        int* const arrived = arrivals + slot_of(first, tile);
        if (thread == 0) last = atomicAdd(arrived, 1) == blocks - 1;
        __syncthreads();
        if (!last) return false;
        __threadfence();
        if (thread == 0) *arrived = 0;
#pragma unroll(M_TILES* N_TILES < 8 ? 8 / (M_TILES * N_TILES) : 1)  // many loads at once
        for (int block = first; block < first + blocks; block++)
#pragma unroll
            for (int i = 0; i < M_TILES * N_TILES; i++) {
                const float4 part = __ldcg(part_at(slot_of(block, tile), i));
                float(&s)[4] = sum[i / N_TILES][i % N_TILES];
                s[0] += part.x;
                s[1] += part.y;
                s[2] += part.z;
                s[3] += part.w;
            }
        return true;
    };
    auto store_tile = [&](int tile) {
        const int thread = read_thread(), warp = thread / 32, quad = thread % 32 / 4, member = thread % 4;
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            const int own = tile * BLOCK_TILES + warp * M_TILES + m;
#pragma unroll
            for (int half = 0; half < (GATE ? 1 : 2); half++) {
                const int output = own * STEP + quad + 8 * half, row = min(output, OUTPUTS - 1);
                auto total = [&](float value, int row) {
                    value *= UNIT;
                    if (!GROUP) value *= load_as_float<SCALE_TYPE>(scales, row);
                    return bias ? value + load_as_float<X_TYPE>(bias, row) : value;
                };
#pragma unroll
                for (int i = 0; i < 2 * N_TILES; i++) {
                    float(&s)[4] = sum[m][i / 2];
                    const int token = i / 2 * 8 + member * 2 + i % 2;
                    float value = total(s[2 * half + i % 2], row);
                    // A gate and its up-projection are rows quad and quad + 8 of a tile, which one lane has.
                    if (GATE) value = value / (1.0f + __expf(-value)) * total(s[2 + i % 2], row + OUTPUTS);
                    if (token >= tokens || output >= OUTPUTS) continue;
                    const long at = (long)token * OUTPUTS + output;
                    if (residual) value += load_as_float<X_TYPE>(residual, at);
                    store_float<X_TYPE>(y, at, value);
                }
            }
        }
    };

    int slot = 0, refill = STAGES - 1;
    for (int unit = begin; unit < end; unit++) {
        wait_for_oldest();
        __syncthreads();  // x of this stage has arrived, and no warp reads the stage before it any more
        if (unit + STAGES - 1 < end) {
            fetch_weights(stages[refill], unit + STAGES - 1);
            fetch_x(stages[refill], unit + STAGES - 1);
        }
        commit_copies();
        const int tile = (u32)unit / STEPS, step = (u32)unit % STEPS;
        add_stage(stages[slot], output_of(tile), step);
        refill = slot;
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        if (step < STEPS - 1 && unit < end - 1) continue;
        if (complete(tile)) store_tile(tile);
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) sum[i / 4 / N_TILES][i / 4 % N_TILES][i % 4] = 0.0f;
    }
}
