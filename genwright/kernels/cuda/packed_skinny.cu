// y = W x for up to 16 tokens and packed weights, on tensor cores: 16 rows of W, unpacked to registers, are the left matrix of
// mma.m16n8k16. (What made it fast, and what did not, is in docs/gpu.md.)
//
// A warp has PART columns, whose x it keeps in registers; the warps of a block have all columns. Weights and x come to shared
// memory by TMA (tensor_map.cuh): tiles of 16 rows, or in int8 halves of them, to STAGES stages. The warps' sums of a tile meet
// in shared memory, where one warp for each tile of tokens, another each time, adds them up and writes y; before that it has
// the tile's stages filled again. Rows that are too long for one block are divided among SPLITS blocks, which leave their sums
// to the last of them (parts.cuh).
//
// Operands have the type of x; sums are fp32. Compiled for one shape. Macros: FORMAT (INT8, INT4), X_TYPE (F16 or BF16),
// SCALE_TYPE; OUTPUTS, COLUMNS; GROUP; N_TILES (of 8 tokens: 1 or 2), THREADS, SPLITS, STRIDE (blocks with the same columns),
// STAGES, STAGE_BYTES; flags NORM (if SPLITS is 1), GATE, BIAS, RESIDUAL (not with GATE), MINIMUMS, PDL.

#define ROWS 16
#define SHARE 0
#define OPERAND X_TYPE
#include "types.cuh"
#include "operands.cuh"
#include "shared_memory.cuh"
#include "parts.cuh"
#include "barrier.cuh"
#include "tensor_map.cuh"

#define PART 256  // columns
#define TOKENS (8 * N_TILES)
#define FINISHERS (WARPS / N_TILES * N_TILES)  // warps that take turns at finishing tiles
#define LINE 128                               // bytes of shared memory: a slice of a row
#define SLICE (LINE / 16 * WIDTH)              // columns
#define TILE_STEPS (PART / SLICE)              // slices of a warp, and stages of a tile
#define STEP_CHUNKS 2                          // of a slice, per lane
#define CHUNKS (TILE_STEPS * STEP_CHUNKS)
#define X_LINES (SLICE * X_BYTES / LINE)  // of a slice
#define WHOLE (COLUMNS == PART * WARPS * SPLITS)
#define SCALED (GROUP > 0)
#define SCALE_BYTES (SCALE_TYPE == F32 ? 4 : 2)
#define SCALES_OF(columns) ((columns) / (SCALED ? GROUP : 1) * SCALE_BYTES)  // bytes
#define KINDS (MINIMUMS ? 2 : 1)                                             // scales, and minimums
// TMA needs rows at multiples of 16 bytes. MERGED rows of scales form one such row, and each of them is copied by itself.
#define ROW_SCALES (SCALES * SCALE_BYTES)
#define MERGED (ROW_SCALES % 16 == 0 ? 1 : ROW_SCALES % 8 == 0 ? 2 : ROW_SCALES % 4 == 0 ? 4 : 8)
#define STAGE_SCALES (WARPS * SCALES_OF(SLICE))  // bytes of a row's scales in a stage; a copy begins up to 15 bytes before them
#define SCALE_LINES (SCALED ? (STAGE_SCALES + (MERGED > 1 || STAGE_SCALES % 16 ? 15 : 0) + LINE - 1) / LINE : 0)

struct alignas(1024) Stage {  // the swizzle repeats after 1,024 bytes
    u8 weight[WARPS][ROWS][LINE];
#if SCALED
    u8 scale[KINDS][SCALE_LINES][MERGED][ROWS / MERGED][LINE];
#endif
};

typedef u8 X[TILE_STEPS][X_LINES][TOKENS][LINE];  // of a warp
typedef float4 Sums[2][N_TILES][32];             // of a warp's two tiles, the one that is added up and the next, by lanes

struct Shared {
    Stage stages[STAGES];
    Sums sums[WARPS];
    float squares[WARPS][TOKENS], factors[TOKENS];               // of x, and of the norm
    Barrier x_copied[WARPS], x_read, copied[STAGES], full[2], empty[2];  // of x, of stages, and of sums
};

// A turn's stages are filled again in the next turn, which needs stages of its own.
static_assert(sizeof(Stage) == STAGE_BYTES && STAGES >= 2 * TILE_STEPS);

// Before x is in registers, it has the place of the sums and of all stages but these. The others are copied afterwards.
constexpr int FIRST_STAGES = (sizeof(Stage) * STAGES + sizeof(Sums) * WARPS - sizeof(X) * WARPS) / sizeof(Stage);
static_assert(sizeof(X) * WARPS <= sizeof(Stage) * (STAGES - 1) + sizeof(Sums) * WARPS);

struct Maps {
    TensorMap x, weight, scales, minimums;
};

// The stages that a block needs, numbered from its first tile on.
struct Ring {
    Shared& shared;
    const Maps& maps;
    int split, first_tile;

    __device__ __forceinline__ static int first_slice(int split, int step) { return (split * TILE_STEPS + step) * WARPS; }

    // Byte of a merged row where this row's scales of a stage begin.
    __device__ __forceinline__ static int first_scale(int split, int step, int row) {
        return row % MERGED * ROW_SCALES + first_slice(split, step) * SCALES_OF(SLICE);
    }

    __device__ __forceinline__ void copy(int number, int place) const {
        const int tile = first_tile + number / TILE_STEPS * STRIDE, step = number % TILE_STEPS;
        if (tile >= TILES) return;
        Stage& stage = shared.stages[place];
        Barrier& copied = shared.copied[place];
        copied.arrive_and_expect(sizeof(Stage));
        copy_box(stage.weight, maps.weight, copied, 0, tile * STEP, 0, first_slice(split, step));
#if SCALED
#pragma unroll
        for (int i = 0; i < SCALE_LINES * MERGED; i++) {
            const int box = i / MERGED, row = i % MERGED;
            const int first = first_scale(split, step, row) / 16 * 16 + box * LINE;
            copy_box(stage.scale[0][box][row], maps.scales, copied, first, tile * STEP / MERGED, 0);
            if (MINIMUMS) copy_box(stage.scale[KINDS - 1][box][row], maps.minimums, copied, first, tile * STEP / MERGED, 0);
        }
#endif
    }

    // Fill the stages of a turn again, which all warps have read.
    __device__ __forceinline__ void refill(int turn) const {
#pragma unroll
        for (int step = 0; step < TILE_STEPS; step++) {
            const int number = turn * TILE_STEPS + step;
            copy(number + STAGES, number % STAGES);
        }
    }
};

#include "packed_outputs.cuh"

// x of the columns of a lane's chunks, of token quad of each tile of tokens: the right matrices of the products, two columns a
// register.
typedef u32 Right[CHUNKS][N_TILES][WIDTH / 2];

__device__ __forceinline__ void load_x(Right& right, const X& x, int lane) {
    const int quad = lane / 4, eight = lane % 4 * PIECES;  // eight: of the slice's columns, the first of the lane's first chunk
    const u32 own = shared_place(x[0][eight / 8][quad]) + (eight % 8 ^ quad) * 16;
#pragma unroll
    for (int i = 0; i < CHUNKS * N_TILES * PIECES; i++) {
        const int c = i / PIECES / N_TILES, n = i / PIECES % N_TILES, piece = i % PIECES;
        const Chunk found = load_shared((own ^ piece * 16) + (c * PIECES / 2 * TOKENS + n * 8) * LINE);
#pragma unroll
        for (int k = 0; k < 4; k++) right[c][n][piece * 4 + k] = found.w[k];
    }
}

// The norm's weights of a lane's columns, two a register.
struct Gains {
    uint4 eights[CHUNKS][PIECES];

    __device__ __forceinline__ Gains(const uint4* norm, int split, int warp, int member) {
#pragma unroll
        for (int i = 0; i < CHUNKS * PIECES; i++) {
            const int c = i / PIECES, slice = Ring::first_slice(split, c / STEP_CHUNKS) + warp;
            const int chunk = (slice * STEP_CHUNKS + c % STEP_CHUNKS) * 4 + member;
            eights[c][i % PIECES] = WHOLE || chunk < ROW_CHUNKS ? norm[chunk * PIECES + i % PIECES] : uint4{};
        }
    }
};

// Sums of squares of each token: the diagonal of x x^T.
__device__ __forceinline__ void sum_squares(const Right& right, float (&squares)[TOKENS], int quad, int member) {
    float product[2][N_TILES][4] = {};
#pragma unroll
    for (int i = 0; i < CHUNKS * PIECES * 2 * N_TILES; i++) {
        const int c = i / N_TILES / 2 / PIECES, n = i % N_TILES, at = i / N_TILES % (2 * PIECES) * 2;
        const auto& own = right[c];
        multiply(product[at / 2 % 2][n], own[0][at], own[N_TILES - 1][at], own[0][at + 1], own[N_TILES - 1][at + 1], own[n][at],
                 own[n][at + 1]);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const int i = n * 2;
        const float even = product[0][n][i] + product[1][n][i], odd = product[0][n][i + 1] + product[1][n][i + 1];
        if (quad / 2 == member) squares[n * 8 + quad] = quad % 2 ? odd : even;
    }
}

__device__ __forceinline__ void multiply_by(Right& right, const Gains& gains) {
#pragma unroll
    for (int i = 0; i < CHUNKS * PIECES * N_TILES; i++) {
        u32* const own = &right[i / N_TILES / PIECES][i % N_TILES][i / N_TILES % PIECES * 4];
        const uint4 gain = gains.eights[i / N_TILES / PIECES][i / N_TILES % PIECES];
        own[0] = mul2(own[0], gain.x), own[1] = mul2(own[1], gain.y);
        own[2] = mul2(own[2], gain.z), own[3] = mul2(own[3], gain.w);
    }
}

// What the norm divides each token by, from the squares of all warps.
__device__ __forceinline__ void compute_factors(Shared& shared, int lane, float eps) {
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) square += shared.squares[i][lane % TOKENS];
    if (lane < TOKENS) shared.factors[lane] = rsqrtf(square / COLUMNS + eps);
}

// Add a slice's products to the sums; `stage` is bytes from the first one, `own_weight` the lane's place in that.
__device__ __forceinline__ void multiply_slice(float (&sum)[2][N_TILES][4], const Right& right, const Ring& ring, u32 own_weight,
                                               u32 stage, int step, int warp, int lane) {
    const int member = lane % 4, row = mma_row(lane);
    u32 own_scale[2] = {};
#if SCALED
    const int first = Ring::first_scale(ring.split, step, row) % 16 + warp * SCALES_OF(SLICE) + SCALES_OF(member * WIDTH);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int place = (row + half * 8) / MERGED;
        own_scale[half] = shared_place(ring.shared.stages[0].scale[0][first / LINE][row % MERGED][place]) + first % 16 +
                          (first % LINE / 16 ^ (row % MERGED * (ROWS / MERGED) + place) % 8) * 16;
    }
#endif
#pragma unroll
    for (int c = 0; c < STEP_CHUNKS; c++) {
        Chunk chunk[2];
        Factors factors[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            chunk[half] = load_shared((own_weight ^ c * 64) + stage + half * 8 * LINE);
            float scale = 1.0f, minimum = 0.0f;
#if SCALED
            const u32 at = (own_scale[half] ^ SCALES_OF(c * 4 * WIDTH)) + stage;
            scale = load_shared_as_float<SCALE_TYPE>(at);
            if (MINIMUMS) minimum = load_shared_as_float<SCALE_TYPE>(at + SCALE_LINES * ROWS * LINE);
#endif
            factors[half] = factors_of(scale, minimum);
        }
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            u32 left[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++) scale_piece<SCALED>(chunk[half], piece, factors[half], left[half]);
#pragma unroll
            for (int i = 0; i < 2 * N_TILES; i++) {
                const int k = i / N_TILES * 2, n = i % N_TILES;
                const u32* const own = &right[step * STEP_CHUNKS + c][n][piece * 4 + k];
                multiply(sum[piece % 2][n], left[0][k], left[1][k], left[0][k + 1], left[1][k + 1], own[0], own[1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
packed_skinny(const uint4* norm, float eps, const __grid_constant__ Maps maps, const void* row_scales, const void* bias,
              const void* residual, void* y, Four* parts, int tokens) {
    extern __shared__ __align__(1024) uint4 memory[];
    Shared& shared = *(Shared*)memory;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that the compiler knows that it is the same for all lanes
    const int lane = threadIdx.x % 32, quad = lane / 4, member = lane % 4;
    const int split = blockIdx.x % SPLITS, first_tile = blockIdx.x / SPLITS, turns = (TILES - 1 - first_tile) / STRIDE + 1;
    const int row = mma_row(lane);
    u32 own_weight = shared_place(shared.stages[0].weight[warp][row]) + (member ^ row) * 16;
    asm volatile("" : "+r"(own_weight));  // is computed here, not after x has arrived
    const Ring ring = {shared, maps, split, first_tile};
    X& x = ((X*)&shared.stages[FIRST_STAGES])[warp];
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) shared.copied[i].initialize(1);
        for (int i = 0; i < 2; i++) shared.full[i].initialize(WARPS), shared.empty[i].initialize(N_TILES);
        shared.x_read.initialize(WARPS);
        fence_async_proxy();
        ring.copy(0, 0);
    }
    if (lane == 0) {
        shared.x_copied[warp].initialize(1);
        fence_async_proxy();
    }
    __syncthreads();
#if NORM
    const Gains gains(norm, split, warp, member);
#endif
    join_stream();
    if (lane == 0) {
        shared.x_copied[warp].arrive_and_expect(sizeof(X));
#pragma unroll
        for (int step = 0; step < TILE_STEPS; step++)
            copy_box(x[step], maps.x, shared.x_copied[warp], 0, 0, (Ring::first_slice(split, step) + warp) * X_LINES);
        if (warp > 0 && warp < FIRST_STAGES) ring.copy(warp, warp);
    }
    Right right;
    shared.x_copied[warp].wait(0);
    load_x(right, x, lane);
#if NORM
    sum_squares(right, shared.squares[warp], quad, member);
    multiply_by(right, gains);
#endif
    __syncwarp();
    if (lane == 0) shared.x_read.arrive();
    if (warp == 0) {  // where x was, there is room now for sums and for the other stages
        shared.x_read.wait(0);
        if (lane < 2 * N_TILES) shared.empty[lane % 2].arrive();
        if (lane == 0) {
#pragma unroll 1
            for (int i = FIRST_STAGES; i < STAGES; i++) ring.copy(i, i);
        }
        __syncwarp();
    }
#if NORM
    if (warp == WARPS - 1) {  // all warps see the factors when this one has arrived at `full`
        shared.x_read.wait(0);
        compute_factors(shared, lane, eps);
        __syncwarp();
    }
#endif

    const Outputs to = {row_scales, bias, residual, y, parts, tokens};
    const Finisher finisher = {ring, to, warp % N_TILES, lane};
    // The sums of a tile are in one of two slots. They are finished one turn later, in each turn by other warps.
    int next_finish = warp < FINISHERS ? warp / N_TILES : TILES;  // the next turn that this warp finishes
    u32 stage = 0, lap = 0;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        if (turn < turns) {
            float sum[2][N_TILES][4] = {};  // two, because a product waits for the one before it that adds to the same sums
#pragma unroll
            for (int step = 0; step < TILE_STEPS; step++) {
                shared.copied[stage].wait(lap);
                multiply_slice(sum, right, ring, own_weight, stage * (u32)sizeof(Stage), step, warp, lane);
                if (++stage == STAGES) stage = 0, lap++;
            }
            share(shared, turn, warp, lane, sum);
        }
        const bool finishes = turn == next_finish + 1;
        if (finishes) {
            finisher.finish(turn - 1);
            next_finish += FINISHERS / N_TILES;
        }
        if (turn >= turns) {
            if (finishes) finisher.collect(turn - 1);
            return;
        }
    }
}
