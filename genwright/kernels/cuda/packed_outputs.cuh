// How warps of packed_skinny.cu finish a tile of rows: they add up the sums of all warps and, in the last block that has the rows, of
// all blocks, and write y. A lane has the rows and tokens of mma's results: mma_row and eight more (with GATE, the gate's and
// the up-projection's), tokens 2 (lane % 4) and the next.

// The row of a tile that is row lane / 4 of mma. In this order the lanes that read shared memory at the same time use all banks.
__device__ __forceinline__ int mma_row(int lane) { return lane / 4 % 2 * 4 + lane / 8; }

struct Outputs {
    const void *row_scales, *bias, *residual;
    void* y;
    Four* parts;  // [blocks with the same rows][turn][block][eight tokens][lane]: sums for the last block
    int tokens;
};

constexpr int AT_ONCE = 16 / N_TILES;  // warps whose sums are loaded at the same time; more would not fit in registers

// Put a warp's sums where another adds them up.
__device__ __forceinline__ void share(Shared& shared, int turn, int warp, int lane, const float (&sum)[2][N_TILES][4]) {
    const int slot = turn % 2;
    shared.empty[slot].wait(turn / 2);
#pragma unroll
    for (int n = 0; n < N_TILES; n++)
        shared.sums[warp][slot][n][lane] = make_float4(sum[0][n][0] + sum[1][n][0], sum[0][n][1] + sum[1][n][1],
                                                       sum[0][n][2] + sum[1][n][2], sum[0][n][3] + sum[1][n][3]);
    __syncwarp();
    if (lane == 0) shared.full[slot].arrive();
}

struct Finisher {
    const Ring& ring;
    const Outputs& to;
    int n, lane;  // n: the tile of tokens

    __device__ __forceinline__ int tile(int turn) const { return turn * STRIDE + ring.first_tile; }
    __device__ __forceinline__ int token(int i) const { return n * 8 + lane % 4 * 2 + i % 2; }
    __device__ __forceinline__ int output(int turn, int i) const { return tile(turn) * STEP + mma_row(lane) + (GATE ? 0 : i / 2 * 8); }
    __device__ __forceinline__ long place(int turn, int i) const { return (long)token(i) * OUTPUTS + output(turn, i); }
    __device__ __forceinline__ bool has(int turn, int i) const {
        return token(i) < to.tokens && (OUTPUTS % STEP == 0 || output(turn, i) < OUTPUTS);
    }

    // What the outputs need besides their sums; loaded before these are known.
    struct Terms {
        float scale[2], bias[2], residual[4];  // of the two rows, and of each sum
    };

    __device__ __forceinline__ Terms load_terms(int turn) const {
        Terms terms;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = min(output(turn, half * 2), OUTPUTS - 1) + (GATE ? half * OUTPUTS : 0);
            terms.scale[half] = SCALED ? UNIT : UNIT * load_as_float<SCALE_TYPE>(to.row_scales, row);
            terms.bias[half] = BIAS ? load_as_float<X_TYPE>(to.bias, row) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            terms.residual[i] = RESIDUAL && has(turn, i) ? load_as_float<X_TYPE>(to.residual, place(turn, i)) : 0.0f;
        return terms;
    }

    __device__ __forceinline__ void write(int turn, const float (&sums)[4], const Terms& terms) const {
        float values[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float normed = NORM ? sums[i] * ring.shared.factors[token(i)] : sums[i];
            values[i] = fmaf(normed, terms.scale[i / 2], terms.bias[i / 2] + terms.residual[i]);
        }
#pragma unroll
        for (int i = 0; i < (GATE ? 2 : 4); i++) {
            const float value = GATE ? values[i] / (1.0f + __expf(-values[i])) * values[i + 2] : values[i];
            if (has(turn, i)) store_float<X_TYPE>(to.y, place(turn, i), value);
        }
    }

    __device__ __forceinline__ Four* part(int turn, int block) const {
        const int most_turns = (TILES + STRIDE - 1) / STRIDE;
        return to.parts + (((ring.first_tile * most_turns + turn) * SPLITS + block) * N_TILES + n) * 32 + lane;
    }

    // Add up the sums of this block. Write y, or leave them to the last block, which writes those of the turn before.
    __device__ __forceinline__ void finish(int turn) const {
        const int slot = turn % 2;
#if SPLITS == 1
        const Terms terms = load_terms(turn);
#endif
        float sums[4] = {};
        ring.shared.full[slot].wait(turn / 2);
        if (n == 0 && lane == 0) ring.refill(turn);
#pragma unroll AT_ONCE
        for (int warp = 0; warp < WARPS; warp++) {
            const float4 more = ring.shared.sums[warp][slot][n][lane];
            sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
        }
        __syncwarp();
        if (lane == 0) ring.shared.empty[slot].arrive();
#if SPLITS > 1
        leave(part(turn, ring.split), *(const Four*)sums);
        if (turn > 0) collect(turn - 1);
#else
        write(turn, sums, terms);
#endif
    }

    // Add up the sums of all blocks, and write y. The last block waits only for blocks before it, which have been started.
    __device__ __forceinline__ void collect(int turn) const {
#if SPLITS > 1
        if (ring.split < SPLITS - 1) return;
        const Terms terms = load_terms(turn);
        Four found[SPLITS];
        float sums[4] = {};
#pragma unroll
        for (int block = 0; block < SPLITS; block++) found[block] = peek(part(turn, block));
#pragma unroll
        for (int block = 0; block < SPLITS; block++) take(sums, part(turn, block), found[block]);
        write(turn, sums, terms);
#endif
    }
};
