// What packed_wgmma.cu writes: y, from the sums of a tile of rows, or the sums themselves where a later block finishes the tile. Each team
// does it for its rows.

#define HALVES (GATE ? 2 : 1)
#define AT_ONCE (MOST_BEFORE * HALVES > 8 ? 1 : MOST_BEFORE * HALVES > 5 ? 2 : 4)  // fours of outputs whose sums a thread loads at a time

struct alignas(8) FourNumbers {  // as they are stored
    u16 bits[4];
};

typedef float Sums[TOKENS][TEAM_ROWS + 4];  // lanes of a warp store their sums to different banks

// `row` is the first of the lane's rows.
__device__ __forceinline__ void store_sums(Sums& to, const float (&sum)[M_TILES][N_TILES][4], int row, int lane) {
#pragma unroll
    for (int i = 0; i < M_TILES * N_TILES * 4; i++) {
        const int m = i / 4 / N_TILES, n = i / 4 % N_TILES;
        to[n * 8 + lane % 4 * 2 + i % 2][m * 64 + i % 4 / 2 * 8 + row] = sum[m][n][i % 4];
    }
}

struct Outputs {
    const void *row_scales, *bias, *residual;
    void* y;
    u32* scratch;  // [block][team]: whether sums are there. Then [block][team][token][row]: those of a block's tile that a later one finishes
    int tokens;

    __device__ __forceinline__ u32* arrived(int block, int team) const { return scratch + block * TEAMS + team; }

    __device__ __forceinline__ float4* part(int block, int team, int token, int row) const {
        return (float4*)(scratch + FLAGS + (((long)block * TEAMS + team) * TOKENS + token) * TEAM_ROWS + row);
    }

    // What four outputs of a token need besides their sums; loaded before these are known.
    struct Terms {
        float scale[HALVES][4], bias[HALVES][4], residual[4];
    };

    __device__ __forceinline__ Terms load_terms(int token, int output) const {
        Terms terms;
#pragma unroll
        for (int k = 0; k < 4 * HALVES; k++) {
            const int row = min(output + k % 4, OUTPUTS - 1) + k / 4 * OUTPUTS;
            terms.scale[k / 4][k % 4] = SCALED ? UNIT : UNIT * load_as_float<SCALE_TYPE>(row_scales, row);
            terms.bias[k / 4][k % 4] = BIAS ? load_as_float<X_TYPE>(bias, row) : 0.0f;
        }
        const long at = (long)token * OUTPUTS + output;
        FourNumbers residuals = {};
        if (RESIDUAL && OUTPUTS % 4 == 0 && has(output)) residuals = *(const FourNumbers*)((const u16*)residual + at);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (RESIDUAL && OUTPUTS % 4 && has(output + k)) residuals.bits[k] = ((const u16*)residual)[at + k];
            terms.residual[k] = from_stored<X_TYPE>(residuals.bits[k]);
        }
        return terms;
    }

    __device__ __forceinline__ static bool has(int output) { return WHOLE_TILES || output < OUTPUTS; }

    __device__ __forceinline__ void store(int token, int output, const float (&sum)[HALVES][4], const Terms& terms) const {
        FourNumbers values;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float value = fmaf(sum[0][k], terms.scale[0][k], terms.bias[0][k]);
            const float up = fmaf(sum[HALVES - 1][k], terms.scale[HALVES - 1][k], terms.bias[HALVES - 1][k]);
            if (GATE) value = value / (1.0f + __expf(-value)) * up;
            store_float<X_TYPE>(values.bits, k, value + terms.residual[k]);
        }
        const long at = (long)token * OUTPUTS + output;
        if (OUTPUTS % 4 == 0 && has(output)) *(FourNumbers*)((u16*)y + at) = values;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (OUTPUTS % 4 && has(output + k)) ((u16*)y)[at + k] = values.bits[k];
    }
};

// A block that leaves a team's sums says so, when they are written. The one that takes them says that they are gone, for the next launch.
__device__ __forceinline__ void set_arrived(u32* at, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ void wait_for_arrival(const u32* at) {
    u32 found;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    while (found == 0);
}

// Write a team's outputs of a tile, or leave the sums to the block that has the tile's end.
__device__ __forceinline__ void finish(const Outputs& to, const Sums& sums, int tile, int team, int thread) {
    const int first = block_of(tile * STEPS), last = block_of(tile * STEPS + STEPS - 1);
    if (blockIdx.x != last) {
#pragma unroll 4
        for (int i = thread; i < TEAM_ROWS / 4 * to.tokens; i += TEAM_THREADS) {
            const int token = i / (TEAM_ROWS / 4), row = i % (TEAM_ROWS / 4) * 4;
            *to.part(blockIdx.x, team, token, row) = *(const float4*)&sums[token][row];
        }
        sync_team(team);
        if (thread == 0) set_arrived(to.arrived(blockIdx.x, team), 1);
        return;
    }
    for (int block = first; block < last; block++) wait_for_arrival(to.arrived(block, team));
    const int count = STEP / 4 * to.tokens;
#pragma unroll 1
    for (int base = thread; base < count; base += TEAM_THREADS * AT_ONCE) {
        float4 found[AT_ONCE][MOST_BEFORE][HALVES] = {};
#pragma unroll
        for (int k = 0; k < AT_ONCE * MOST_BEFORE * HALVES; k++) {
            const int i = base + k / HALVES / MOST_BEFORE * TEAM_THREADS, block = first + k / HALVES % MOST_BEFORE;
            const int token = i / (STEP / 4), row = i % (STEP / 4) * 4 + k % HALVES * STEP;
            if (block < last && i < count)
                found[k / HALVES / MOST_BEFORE][k / HALVES % MOST_BEFORE][k % HALVES] = *to.part(block, team, token, row);
        }
        Outputs::Terms terms[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int i = base + n * TEAM_THREADS, token = i / (STEP / 4), row = i % (STEP / 4) * 4;
            if (i < count) terms[n] = to.load_terms(token, (tile * TEAMS + team) * STEP + row);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int i = base + n * TEAM_THREADS, token = i / (STEP / 4), row = i % (STEP / 4) * 4;
            if (i >= count) break;
            float sum[HALVES][4];
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                *(float4*)sum[half] = *(const float4*)&sums[token][row + half * STEP];
#pragma unroll
                for (int k = 0; k < MOST_BEFORE; k++) {
                    const float4 more = found[n][k][half];
                    sum[half][0] += more.x, sum[half][1] += more.y, sum[half][2] += more.z, sum[half][3] += more.w;
                }
            }
            to.store(token, (tile * TEAMS + team) * STEP + row, sum, terms[n]);
        }
    }
    sync_team(team);
    if (thread < last - first) set_arrived(to.arrived(first + thread, team), 0);
}
