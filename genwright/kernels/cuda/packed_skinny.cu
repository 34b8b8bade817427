// y = W x for up to 16 tokens and packed weights, on tensor cores: 16 rows of W, unpacked to registers, are the left matrix of
// mma.m16n8k16. (What made it fast, and what did not, is in docs/gpu.md.)
//
// A warp has PART columns, whose x it keeps in registers. It copies 128 bytes of each row of a tile of 16 rows at a time to
// shared memory, STAGES - 1 copies ahead, and reads no other warp's. The warps of a block have all columns. Their sums of a tile
// meet in shared memory, where one warp for each tile of tokens, another each time, adds them up and writes y. Rows that are too
// long for one block are divided among SPLITS blocks, which leave their sums to the last of them (parts.cuh).
//
// Operands have the type of x; sums are fp32. Compiled for one shape. Macros: FORMAT (INT8, INT4), X_TYPE (F16 or BF16),
// SCALE_TYPE; OUTPUTS, COLUMNS; GROUP; N_TILES (of 8 tokens: 1 or 2), THREADS, SPLITS, STAGES, EARLY (stages that are copied
// before x is known); flags NORM (if SPLITS is 1), GATE, BIAS, RESIDUAL (not with GATE), MINIMUMS, PDL.

#define ROWS 16
#define SHARE 0
#define OPERAND X_TYPE
#include "types.cuh"
#include "operands.cuh"
#include "copies.cuh"
#include "parts.cuh"
#include "barrier.cuh"

#define PART 256  // columns
#define TOKENS (8 * N_TILES)
#define FINISHERS (WARPS / N_TILES * N_TILES)  // warps that take turns at finishing tiles
#define PARTS 8                    // chunks of a stage's row
#define SLICE (PARTS * WIDTH)      // columns of a stage
#define TILE_STEPS (PART / SLICE)  // stages of a tile
#define CHUNKS (PART / WIDTH / 4)  // of a tile's row, per lane
#define WHOLE (COLUMNS == PART * WARPS * SPLITS)
#define SCALED (GROUP > 0)
#define SCALE_BYTES (SCALE_TYPE == F32 ? 4 : 2)
#define SLICE_SCALES (SCALED ? SLICE / (SCALED ? GROUP : 1) * SCALE_BYTES : 0)  // bytes of a stage's row
#define ROW_SCALES (SCALES * SCALE_BYTES)
#define ALIGNED(bytes) (SLICE_SCALES % (bytes) == 0 && ROW_SCALES % (bytes) == 0)
#define SCALE_PART (ALIGNED(16) ? 16 : ALIGNED(8) ? 8 : 4)  // bytes of a copy
#define KINDS (MINIMUMS ? 2 : 1)                            // scales, and minimums

struct alignas(128) Stage {
    uint4 weight[ROWS][PARTS];  // in odd rows neighbouring fours are exchanged, so that banks differ
#if SCALED
    alignas(16) u8 scale[KINDS][ROWS][SLICE_SCALES];
#endif
};

struct Shared {
    Stage stages[WARPS][STAGES];
    union {
        uint4 x[8 * 16];              // at first: 128 columns of eight tokens
        float4 sums[2][N_TILES][32];  // of two tiles, the one that is added up and the next, by lanes
    } own[WARPS];
    float squares[WARPS][TOKENS], factors[TOKENS];  // of x, and of the norm
    Barrier full[2], empty[2];                      // of sums
};

#include "packed_outputs.cuh"

// Copies a warp's columns of its tiles to shared memory.
struct Copies {
    const char *weight, *scales, *minimums;  // this lane's of the next stage
    int tile, stride, step, slice, lane;     // slice: of a row, the warp's first
    u32 stage, first_stage;

    static constexpr int ROW_BYTES = ROW_CHUNKS * 16;
    static constexpr int AT_ONCE = 32 / PARTS;  // rows that the lanes copy at a time
#if SCALED
    static constexpr int SCALE_PARTS = SLICE_SCALES / SCALE_PART;  // copies of a row's scales
    static constexpr int SCALES_AT_ONCE = 32 / SCALE_PARTS < ROWS ? 32 / SCALE_PARTS : ROWS;
#endif
    // The matrix row of a tile's row r, from that of its first one.
    static __device__ __forceinline__ constexpr int row_after(int r) { return GATE ? r % 8 + r / 8 * OUTPUTS : r; }

    __device__ __forceinline__ bool has(int r) const { return OUTPUTS % STEP == 0 || tile * STEP + (GATE ? r % 8 : r) < OUTPUTS; }

    __device__ __forceinline__ Copies(const char* weights, const char* all_scales, const char* all_minimums, int tile, int stride,
                                      int part, int lane, u32 stage)
        : tile(tile), stride(stride), step(0), slice(part * TILE_STEPS), lane(lane), stage(stage), first_stage(stage) {
        weight = weights + (long)(tile * STEP + lane / PARTS) * ROW_BYTES + (slice * PARTS + lane % PARTS) * 16;
#if SCALED
        const int row = tile * STEP + row_after(lane / SCALE_PARTS % SCALES_AT_ONCE);
        const long first = (long)row * ROW_SCALES + slice * SLICE_SCALES + lane % SCALE_PARTS * SCALE_PART;
        scales = all_scales + first;
        minimums = all_minimums + first;
#endif
    }

    // Rows from FIRST on, AT_ONCE at a time. An address is that of the first row, or of the up-projection's, and a constant.
    template <int FIRST> __device__ __forceinline__ void copy_rows(u32 to, const char* from, bool own) const {
        const char* const base = GATE && FIRST >= 8 ? from + (long)OUTPUTS * ROW_BYTES : from;
        const bool valid = own && has(FIRST + lane / PARTS);
        asm volatile("cp.async.cg.shared.global [%0 + %3], [%1 + %4], 16, %2;" ::"r"(to), "l"(base), "r"(valid ? 16 : 0),
                     "n"(FIRST * PARTS * 16), "n"((GATE ? FIRST % 8 : FIRST) * ROW_BYTES)
                     : "memory");
        if constexpr (FIRST + AT_ONCE < ROWS) copy_rows<FIRST + AT_ONCE>(to, from, own);
    }

    __device__ __forceinline__ void copy_next() {
        if (tile < TILES) {
            const int row = lane / PARTS, part = lane % PARTS;
            const bool own = WHOLE || (slice + step) * PARTS + part < ROW_CHUNKS;
            copy_rows<0>(stage + (row * PARTS + (part ^ row % 2 * 4)) * 16, weight, own);
            const bool last = step == TILE_STEPS - 1;
            weight += last ? (long)stride * STEP * ROW_BYTES - (TILE_STEPS - 1) * PARTS * 16 : PARTS * 16;
#if SCALED  // If there are fewer to copy than lanes, some lanes copy the same.
            const int number = lane % (SCALE_PARTS * SCALES_AT_ONCE), byte = number % SCALE_PARTS * SCALE_PART;
            const bool own_scales = WHOLE || (slice + step) * SLICE_SCALES + byte < ROW_SCALES;
            const u32 place = stage + (u32)sizeof(Stage::weight) + number * SCALE_PART;
#pragma unroll
            for (int i = 0; i < KINDS * ROWS; i += SCALES_AT_ONCE)
                copy_async<SCALE_PART>(place + i * SLICE_SCALES,
                                       (i < ROWS ? scales : minimums) + (long)row_after(i % ROWS) * ROW_SCALES,
                                       own_scales && has(i % ROWS + number / SCALE_PARTS));
            scales += last ? (long)stride * STEP * ROW_SCALES - (TILE_STEPS - 1) * SLICE_SCALES : SLICE_SCALES;
            if (MINIMUMS) minimums += last ? (long)stride * STEP * ROW_SCALES - (TILE_STEPS - 1) * SLICE_SCALES : SLICE_SCALES;
#endif
            step = last ? 0 : step + 1;
            tile += last ? stride : 0;
        }
        commit_copies();
        stage = after(stage);
    }

    __device__ __forceinline__ u32 after(u32 stage) const {
        return stage == first_stage + (STAGES - 1) * (u32)sizeof(Stage) ? first_stage : stage + (u32)sizeof(Stage);
    }
};

// x of the columns of a lane's chunks, of token quad of each tile of tokens: the right matrices of the products, two columns a
// register.
typedef u32 Right[CHUNKS][N_TILES][WIDTH / 2];

// Load x of a warp's columns: neighbouring lanes load neighbouring columns, and exchange them through `room`.
template <typename FUNCTION>
__device__ __forceinline__ void load_x(Right& right, const uint4* x, int part, int lane, int tokens, uint4* room,
                                       FUNCTION meanwhile) {
    constexpr int SECTIONS = PART / 128;  // of 16 eights
    const int quad = lane / 4, member = lane % 4;
    auto place = [](int token, int eight) { return token * 16 + (eight ^ eight / 4 % 4 ^ token % 2); };  // so that banks differ
    uint4 loaded[SECTIONS][N_TILES][4];
#pragma unroll
    for (int i = 0; i < SECTIONS * N_TILES * 4; i++) {
        const int section = i / 4 / N_TILES, n = i / 4 % N_TILES, token = n * 8 + i % 4 * 2 + lane / 16;
        const int eight = (part * SECTIONS + section) * 16 + lane % 16;
        const bool valid = token < tokens && (WHOLE || eight < COLUMNS / 8);
        loaded[section][n][i % 4] = valid ? x[(long)token * (COLUMNS / 8) + eight] : uint4{};
    }
    meanwhile();
#pragma unroll
    for (int i = 0; i < SECTIONS * N_TILES; i++) {
        const int section = i / N_TILES, n = i % N_TILES;
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) room[place(k * 2 + lane / 16, lane % 16)] = loaded[section][n][k];
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int c = k / PIECES, piece = k % PIECES;  // c: in the section
            const uint4 eight = room[place(quad, (c * 4 + member) * PIECES + piece)];
            u32* const to = &right[section * (CHUNKS / SECTIONS) + c][n][piece * 4];
            to[0] = eight.x, to[1] = eight.y, to[2] = eight.z, to[3] = eight.w;
        }
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
packed_skinny(const uint4* x, const uint4* norm, float eps, const char* weight, const char* scales, const char* minimums,
              const void* bias, const void* residual, void* y, Four* parts, int tokens) {
    extern __shared__ __align__(128) uint4 memory[];
    Shared& shared = *(Shared*)memory;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that the compiler knows that it is the same for all lanes
    const int lane = threadIdx.x % 32, quad = lane / 4, member = lane % 4;
    const int split = blockIdx.x % SPLITS, part = split * WARPS + warp;
    const int first_tile = blockIdx.x / SPLITS, stride = gridDim.x / SPLITS;
    Copies copies(weight, scales, minimums, first_tile, stride, part, lane, shared_place(shared.stages[warp]));
#pragma unroll 1
    for (int s = 0; s < EARLY; s++) copies.copy_next();
    if (threadIdx.x < 2) {
        shared.full[threadIdx.x].initialize(WARPS);
        shared.empty[threadIdx.x].initialize(N_TILES);
    }
    __syncthreads();
#if NORM
    uint4 gains[CHUNKS][PIECES];
#pragma unroll
    for (int i = 0; i < CHUNKS * PIECES; i++) {
        const int chunk = part * (PART / WIDTH) + i / PIECES * 4 + member;
        gains[i / PIECES][i % PIECES] = WHOLE || chunk < ROW_CHUNKS ? norm[chunk * PIECES + i % PIECES] : uint4{};
    }
#endif
    join_stream();
    Right right;
    load_x(right, x, part, lane, tokens, shared.own[warp].x, [&] {
#pragma unroll 1
        for (int s = EARLY; s < STAGES - 1; s++) copies.copy_next();
    });
#if NORM  // The diagonal of x x^T has sums of squares, used at the end. Here x is only multiplied by the norm's weights.
    float product[N_TILES][4] = {};
#pragma unroll
    for (int i = 0; i < CHUNKS * PIECES * 2 * N_TILES; i++) {
        const int c = i / N_TILES / 2 / PIECES, n = i % N_TILES, at = i / N_TILES % (2 * PIECES) * 2;
        const auto& own = right[c];
        multiply(product[n], own[0][at], own[N_TILES - 1][at], own[0][at + 1], own[N_TILES - 1][at + 1], own[n][at],
                 own[n][at + 1]);
    }
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
        if (quad / 2 == member) shared.squares[warp][n * 8 + quad] = quad % 2 ? product[n][n * 2 + 1] : product[n][n * 2];
#pragma unroll
    for (int i = 0; i < CHUNKS * PIECES * N_TILES; i++) {
        u32* const own = &right[i / N_TILES / PIECES][i % N_TILES][i / N_TILES % PIECES * 4];
        const uint4 gain = gains[i / N_TILES / PIECES][i / N_TILES % PIECES];
        own[0] = mul2(own[0], gain.x), own[1] = mul2(own[1], gain.y);
        own[2] = mul2(own[2], gain.z), own[3] = mul2(own[3], gain.w);
    }
    __syncthreads();
    if (threadIdx.x < TOKENS) {  // all warps see the factors when this one has arrived at `full`
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) square += shared.squares[i][threadIdx.x];
        shared.factors[threadIdx.x] = rsqrtf(square / COLUMNS + eps);
    }
    __syncwarp();
#endif

    const Outputs to = {bias, residual, scales, y, parts, tokens};
    const Finisher finisher = {shared, to, split, first_tile, stride, warp % N_TILES, lane};
    const u32 own_weight = (quad * PARTS + (member ^ quad % 2 * 4)) * 16;
    u32 stage = copies.first_stage;
    auto multiply_slice = [&](int step, float (&sum)[2][N_TILES][4]) {
        wait_for_copies<STAGES - 2>();
        __syncwarp();  // all lanes' copies of this slice have arrived, and none reads the stage that is refilled
        copies.copy_next();
#pragma unroll
        for (int c = 0; c < PARTS / 4; c++) {
            Chunk chunk[2];
            Factors factors[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                chunk[half] = load_shared((stage + own_weight ^ c * 64) + half * 8 * PARTS * 16);
                float scale = 1.0f, minimum = 0.0f;
#if SCALED
                const u32 at = stage + (u32)sizeof(Stage::weight) + (quad + half * 8) * SLICE_SCALES +
                               (c * 4 + member) * WIDTH / GROUP * SCALE_BYTES;
                scale = load_shared_as_float<SCALE_TYPE>(at);
                if (MINIMUMS) minimum = load_shared_as_float<SCALE_TYPE>(at + ROWS * SLICE_SCALES);
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
                    const u32* const own = &right[step * (PARTS / 4) + c][n][piece * 4 + k];
                    multiply(sum[piece % 2][n], left[0][k], left[1][k], left[0][k + 1], left[1][k + 1], own[0], own[1]);
                }
            }
        }
        stage = copies.after(stage);
    };
    // The sums of a tile are in one of two slots. They are finished one turn later, in each turn by other warps.
    int next_finish = warp < FINISHERS ? warp / N_TILES : TILES;  // the next turn that this warp finishes
    int tile = first_tile;
#pragma unroll 1
    for (int turn = 0;;) {
#pragma unroll
        for (int slot = 0; slot < 2; slot++, turn++, tile += stride) {
            const bool more = tile < TILES;
            if (more) {
                float sum[2][N_TILES][4] = {};  // two, because a product waits for the one before it that adds to the same sums
#pragma unroll
                for (int step = 0; step < TILE_STEPS; step++) multiply_slice(step, sum);
                share(shared, turn, warp, lane, sum);
            }
            const bool finishes = turn == next_finish + 1;
            if (finishes) {
                finisher.finish(turn - 1);
                next_finish += FINISHERS / N_TILES;
            }
            if (!more) {
                if (finishes) finisher.collect(turn - 1);
                return;
            }
        }
    }
}
