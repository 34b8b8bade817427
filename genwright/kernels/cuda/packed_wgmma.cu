// y = W x for 17 to 64 tokens and packed weights, on Hopper's tensor cores: 64 rows of W, unpacked to registers, are the left matrix of
// wgmma.m64nNk16, and the tokens, in shared memory, the right one. (What made it fast, and what did not, is in docs/gpu.md.)
//
// Two teams of four warps have TEAM_ROWS rows of a tile each; a lane unpacks eight neighbouring columns of its rows at a time, once for
// all tokens, and rounds them to the type of x. Warps of their own bring weights, by TMA (tensor_map.cuh), and x to shared memory. A
// stage of weights is a line (128 bytes) of each of a block's rows, a stage of x is 64 columns.
// Blocks share tiles (stream_k.cuh).
//
// Compiled for one shape. Macros: FORMAT (INT8, INT4), X_TYPE (F16 or BF16), SCALE_TYPE; OUTPUTS, COLUMNS; GROUP; N_TILES (of 8
// tokens: 4 or 8), TEAM_ROWS (64 or 128), THREADS (of all teams), X_WARPS (that bring x), STAGES, X_STAGES, GRID (blocks), FLAGS
// (words of the scratch before the sums), SHARED_BYTES; flags GATE, BIAS, RESIDUAL, MINIMUMS, PDL.

#define SHARE 0
#define ROWS TEAM_ROWS  // with GATE, the first half of them is the gate's
#define OPERAND X_TYPE
#include "types.cuh"
#include "operands.cuh"
#include "shared_memory.cuh"
#include "barrier.cuh"
#include "tensor_map.cuh"
#include "wgmma.cuh"

#define LINE 128  // bytes of shared memory
#define TEAM_WARPS 4
#define TEAM_THREADS (32 * TEAM_WARPS)
#define TEAMS (WARPS / TEAM_WARPS)
#define ALL_THREADS (THREADS + 32 * (1 + X_WARPS))
#define M_TILES (TEAM_ROWS / 64)
#define WARP_ROWS (TEAM_ROWS / TEAM_WARPS)
#define TILE_OUTPUTS (TEAMS * STEP)
#define TOKENS (8 * N_TILES)
#define STAGE_COLUMNS (LINE / 16 * WIDTH)  // of weights
#define X_COLUMNS (LINE / 2)               // of a stage of x
#define TURNS (STAGE_COLUMNS / X_COLUMNS)  // stages of x that a stage of weights needs
#define BATCHES 2                          // of columns in a stage of x; products of a batch are issued together
#define STEPS ((COLUMNS + STAGE_COLUMNS - 1) / STAGE_COLUMNS)
#define UNITS ((OUTPUTS + TILE_OUTPUTS - 1) / TILE_OUTPUTS * STEPS)  // a unit is one stage of one tile of rows
#define WHOLE_TILES (OUTPUTS % TILE_OUTPUTS == 0)
#define SCALED (GROUP > 0)
#define KINDS (MINIMUMS ? 2 : 1)  // scales, and minimums
#define SCALE_BYTES (SCALE_TYPE == F32 ? 4 : 2)
#define ROW_SCALES (SCALES * SCALE_BYTES)
#define STAGE_GROUPS (GROUP > 0 && GROUP < STAGE_COLUMNS ? STAGE_COLUMNS / (GROUP + !GROUP) : 1)
#define STAGE_SCALES (STAGE_GROUPS * SCALE_BYTES)  // bytes of a row
#define ALIGNED(bytes) (STAGE_SCALES % (bytes) == 0 && ROW_SCALES % (bytes) == 0)
#define SCALE_PART (ALIGNED(16) ? 16 : ALIGNED(8) ? 8 : ALIGNED(4) ? 4 : 2)  // bytes that are loaded at a time

#include "stream_k.cuh"

__device__ __forceinline__ void sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(TEAM_THREADS) : "memory");
}

#include "packed_wgmma_outputs.cuh"

typedef u8 Lines[LINE];

struct Shared {  // sixteens of bytes of a line are exchanged, as tensor_map.cuh says
    alignas(1024) Lines weight[STAGES][TEAMS][TEAM_ROWS], x[X_STAGES][TOKENS];
    Sums sums[TEAMS];
#if SCALED
    uint2 factors[WARPS][WARP_ROWS][STAGE_GROUPS + 1];  // of a stage; one more, so that rows lie in different banks
#endif
    Barrier weight_copied[STAGES], weight_read[STAGES], x_ready[X_STAGES], x_read[X_STAGES];
};
static_assert(sizeof(Shared) <= SHARED_BYTES && GRID * TEAMS <= FLAGS);

// The slots of a ring in turn, and how often each has been used.
template <int COUNT> struct Slot {
    int place = 0;
    u32 lap = 0;

    __device__ __forceinline__ void advance() {
        if (++place == COUNT) place = 0, lap++;
    }
};

__device__ __forceinline__ void copy_weights(Shared& shared, const TensorMap& map, int begin, int end) {
    Slot<STAGES> slot;
    for (int unit = end - 1; unit >= begin; unit--, slot.advance()) {
        const int step = (u32)unit % STEPS, tile = (u32)unit / STEPS;
        if (slot.lap > 0) shared.weight_read[slot.place].wait(slot.lap - 1);
        Barrier& copied = shared.weight_copied[slot.place];
        copied.arrive_and_expect(sizeof(shared.weight[0]));
#pragma unroll
        for (int team = 0; team < TEAMS; team++)
            copy_box(shared.weight[slot.place][team], map, copied, step * LINE, (tile * TEAMS + team) * STEP, 0);
    }
}

// Bring x to its stages. The warps take turns; each has its next stage in registers before there is room for it. A lane of a quad
// unpacks eight neighbouring columns of 32, and wgmma wants two columns of each lane next to each other: so the first two of all four
// come first, then the second two, and so on.
__device__ __forceinline__ void bring_x(Shared& shared, const Chunk* x, int begin, int end, int warp, int lane, int tokens) {
    const int count = (end - begin) * TURNS, part = lane % 8, batch = part / 4, member = part % 4;  // part: eight columns
    Chunk held[TOKENS / 4];
    auto load = [&](int i) {
        const int step = (u32)(end - 1 - i / TURNS) % STEPS, column = (step * TURNS + i % TURNS) * (X_COLUMNS / 8) + part;
#pragma unroll
        for (int k = 0; k < TOKENS / 4; k++) {
            const int token = k * 4 + lane / 8;
            held[k] = Chunk{};
            if (token < tokens && (COLUMNS % STAGE_COLUMNS == 0 || column < COLUMNS / 8)) held[k] = x[(long)token * (COLUMNS / 8) + column];
        }
    };
    load(warp);
    for (int i = warp; i < count; i += X_WARPS) {
        const int slot = i % X_STAGES, lap = i / X_STAGES;
        if (lap > 0) shared.x_read[slot].wait(lap - 1);
#pragma unroll
        for (int k = 0; k < TOKENS / 4; k++) {
            const int token = k * 4 + lane / 8;
#pragma unroll
            for (int pair = 0; pair < 4; pair++)
                *(u32*)&shared.x[slot][token][(batch * 4 + pair ^ token % 8) * 16 + member * 4] = held[k].w[pair];
        }
        fence_products();
        __syncwarp();
        if (lane == 0) shared.x_ready[slot].arrive();
        if (i + X_WARPS < count) load(i + X_WARPS);
    }
}

// Of a team's 64 rows, the one that lane / 4 of a warp stands for in the first half of its 16. In this order the lanes that read shared
// memory at the same time use all banks.
__device__ __forceinline__ int row_of(int warp, int lane) { return warp % TEAM_WARPS * 16 + lane / 4 % 4 * 2 + lane / 16; }

// What scale_piece needs of a group, in two words.
__device__ __forceinline__ uint2 in_two_words(const Factors& f) {
    return MINIMUMS || !BF16_INTEGERS ? make_uint2(f.scale, f.minimum) : make_uint2(f.of_bits, f.zero);
}

__device__ __forceinline__ Factors from_two_words(uint2 words) {
    Factors f = factors_of(1.0f, 0.0f);
    if (MINIMUMS || !BF16_INTEGERS)
        f.scale = words.x, f.minimum = words.y;
    else
        f.of_bits = words.x, f.of_16_bits = mul2(words.x, 0x3D803D80u), f.zero = words.y;  // 1 / 16
    return f;
}

#if SCALED
// The scales and minimums of a warp's rows in a stage, which its lanes load one stage ahead.
struct NextScales {
    struct alignas(SCALE_PART < 4 ? 4 : SCALE_PART) Part {
        u32 words[(SCALE_PART + 3) / 4];
    };
    static constexpr int ROW_PARTS = STAGE_SCALES / SCALE_PART, COUNT = (WARP_ROWS * ROW_PARTS + 31) / 32;
    Part parts[KINDS][COUNT];

    __device__ __forceinline__ void load(const void* const (&from)[2], int unit, int warp, int lane) {
        const int byte = (u32)unit % STEPS * STAGE_COLUMNS / GROUP * SCALE_BYTES;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int part = i * 32 + lane, own = part / ROW_PARTS % WARP_ROWS, at = byte + part % ROW_PARTS * SCALE_PART;
            const int r = own / 16 * 64 + warp % TEAM_WARPS * 16 + own % 16;
            const int output = ((u32)unit / STEPS * TEAMS + warp / TEAM_WARPS) * STEP + r % STEP;
            const long row = output + r / STEP * OUTPUTS;
            const bool valid = (WHOLE_TILES || output < OUTPUTS) && (COLUMNS % STAGE_COLUMNS == 0 || at < ROW_SCALES);
#pragma unroll
            for (int kind = 0; kind < KINDS; kind++) {
                const char* const place = (const char*)from[kind] + row * ROW_SCALES + at;
                parts[kind][i] = Part{};
                if (valid) parts[kind][i] = SCALE_PART == 2 ? Part{{*(const u16*)place}} : *(const Part*)place;
            }
        }
    }

    __device__ __forceinline__ void store(uint2 (&to)[WARP_ROWS][STAGE_GROUPS + 1], int lane) const {
        constexpr int PART_GROUPS = SCALE_PART / SCALE_BYTES;
#pragma unroll
        for (int i = 0; i < COUNT * PART_GROUPS; i++) {
            const int part = i / PART_GROUPS * 32 + lane, group = part % ROW_PARTS * PART_GROUPS + i % PART_GROUPS;
            if (WARP_ROWS * ROW_PARTS % 32 && part >= WARP_ROWS * ROW_PARTS) break;
            float values[2] = {};
#pragma unroll
            for (int kind = 0; kind < KINDS; kind++) {
                const int byte = i % PART_GROUPS * SCALE_BYTES;
                values[kind] = from_stored<SCALE_TYPE>(parts[kind][i / PART_GROUPS].words[byte / 4] >> byte % 4 * 8);
            }
            to[part / ROW_PARTS][group] = in_two_words(factors_of(values[0], values[1]));
        }
    }
};
#endif

// Eight columns of each of a lane's rows, which it loads before it unpacks those before them.
struct Packed {
    Chunk chunks[M_TILES][2];  // of which eight columns are used
    uint2 factors[M_TILES][2];

    __device__ __forceinline__ void load(const Shared& shared, int stage, int batch, int warp, int lane) {
        const int member = lane % 4, first = row_of(warp, lane);
        const int byte = (batch * 4 + member) * (16 / PIECES), place = (byte / 16 ^ first % 8) * 16 + byte % 16;
        const int group = STAGE_GROUPS > 1 ? (batch * 32 + member * 8) / (GROUP + !GROUP) : 0;
#pragma unroll
        for (int i = 0; i < M_TILES * 2; i++) {
            const u8* const from = &shared.weight[stage][warp / TEAM_WARPS][i / 2 * 64 + i % 2 * 8 + first][place];
            Chunk& chunk = chunks[i / 2][i % 2];
            if (FORMAT == INT4)
                chunk.w[0] = *(const u32*)from;
            else
                *(uint2*)chunk.w = *(const uint2*)from;
#if SCALED
            factors[i / 2][i % 2] = shared.factors[warp][i / 2 * 16 + i % 2 * 8 + first % 16][group];
#endif
        }
    }

    // The left matrices of two products for each 64 rows.
    __device__ __forceinline__ void unpack(u32 (&left)[M_TILES][2][4]) const {
#pragma unroll
        for (int i = 0; i < M_TILES * 2; i++) {
            u32 pairs[4];
            const Factors f = SCALED ? from_two_words(factors[i / 2][i % 2]) : factors_of(1.0f, 0.0f);
            scale_piece<SCALED>(chunks[i / 2][i % 2], 0, f, pairs);
#pragma unroll
            for (int k = 0; k < 4; k++) left[i / 2][k / 2][i % 2 + k % 2 * 2] = pairs[k];
        }
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
packed_wgmma(const Chunk* x, const __grid_constant__ TensorMap map, const void* scales, const void* minimums, const void* bias,
             const void* residual, void* y, u32* scratch, int tokens) {
    extern __shared__ __align__(1024) uint4 memory[];
    Shared& shared = *(Shared*)memory;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that the compiler knows that it is the same for all lanes
    const int lane = threadIdx.x % 32, team = warp / TEAM_WARPS;
    const int begin = first_unit(blockIdx.x), end = first_unit(blockIdx.x + 1);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) shared.weight_copied[i].initialize(1), shared.weight_read[i].initialize(WARPS);
        for (int i = 0; i < X_STAGES; i++) shared.x_ready[i].initialize(1), shared.x_read[i].initialize(WARPS);
        fence_async_proxy();
    }
    __syncthreads();
    if (warp == WARPS) {
        if (lane == 0) copy_weights(shared, map, begin, end);
        return;
    }
    join_stream();
    if (warp > WARPS) return bring_x(shared, x, begin, end, warp - WARPS - 1, lane, tokens);

    const Outputs to = {scales, bias, residual, y, scratch, tokens};
    float sum[M_TILES][N_TILES][4];
    u32 left[BATCHES][M_TILES][2][4] = {};
    Packed packed;
    Slot<STAGES> stage;
    Slot<X_STAGES> turn, done;  // done: of the products that end next
#if SCALED
    const void* const sources[] = {scales, minimums};
    NextScales next;
    next.load(sources, end - 1, warp, lane);
#endif
    bool first = true;
    for (int unit = end - 1; unit >= begin;) {
        const int tile = unit / STEPS, last = max(tile * STEPS, begin);
#pragma unroll
        for (int i = 0; i < M_TILES * N_TILES * 4; i++) sum[i / 4 / N_TILES][i / 4 % N_TILES][i % 4] = 0.0f;
#pragma unroll 1  // or the compiler would wait after each product
        do {
            shared.weight_copied[stage.place].wait(stage.lap);
#if SCALED
            next.store(shared.factors[warp], lane);
            __syncwarp();
            if (unit > begin) next.load(sources, unit - 1, warp, lane);
#endif
            packed.load(shared, stage.place, 0, warp, lane);
#pragma unroll
            for (int i = 0; i < TURNS * BATCHES; i++) {
                const int batch = i % BATCHES;
                wait_for_products<1>();
                keep(left[batch]);
                packed.unpack(left[batch]);
                if (batch == 1) {  // the products of the stage of x before this one have ended
                    if (!first && lane == 0) shared.x_read[done.place].arrive();
                    if (!first) done.advance();
                    first = false;
                }
                if (i < TURNS * BATCHES - 1) {
                    packed.load(shared, stage.place, i + 1, warp, lane);
                } else {
                    __syncwarp();
                    if (lane == 0) shared.weight_read[stage.place].arrive();
                }
                if (batch == 0) shared.x_ready[turn.place].wait(turn.lap);
                begin_products();
#pragma unroll
                for (int j = 0; j < 2 * M_TILES; j++) {  // neighbours add to different sums
                    const int k = j / M_TILES, m = j % M_TILES;
                    multiply_tile(sum[m], left[batch][m][k], swizzled(&shared.x[turn.place][0][(batch * 2 + k) * 32]));
                }
                commit_products();
                if (batch == 1) turn.advance();
            }
            stage.advance();
        } while (--unit >= last);
        wait_for_products<0>();
        keep(sum);
        keep(left);
        store_sums(shared.sums[team], sum, row_of(warp, lane), lane);
        sync_team(team);
        finish(to, shared.sums[team], tile, team, threadIdx.x % TEAM_THREADS);
        sync_team(team);
    }
}
