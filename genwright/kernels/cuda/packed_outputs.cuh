// How warps of packed_skinny.cu finish a tile of rows: they add up the sums of all warps and, in the last block that has the
// rows, of all blocks, and write y.

struct Outputs {
    const void *bias, *residual, *row_scales;
    void* y;
    Four* parts;  // [blocks with the same rows][turn][block][token][four rows]: sums for the last block
    float eps;
    int tokens;
};

__device__ __forceinline__ void add(float (&sums)[4], const float4& more) {
    sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
}

// One of 32 threads for each tile of tokens. It adds up four neighbouring rows of a tile, for one token. With GATE, rows 0 to 7 are
// the gate's.
struct Finisher {
    Shared& shared;
    const Outputs& to;
    int split, stride, number;

    __device__ __forceinline__ int row() const { return number % 4 * 4; }
    __device__ __forceinline__ int token() const { return number / 4; }
    __device__ __forceinline__ int output(int tile, int k) const { return tile * STEP + (GATE ? row() % 8 : row()) + k; }
    __device__ __forceinline__ long place(int tile, int k) const { return (long)token() * OUTPUTS + output(tile, k); }
    __device__ __forceinline__ bool has(int tile, int k) const {
        return token() < to.tokens && (!GATE || row() < 8) && (OUTPUTS % STEP == 0 || output(tile, k) < OUTPUTS);
    }

    // What the outputs need besides their sums; loaded before these are known.
    struct Terms {
        float scale[4], added[4];
    };

    __device__ __forceinline__ Terms load_terms(int tile) const {
        Terms terms;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int at = matrix_row(tile, row() + k);
            terms.scale[k] = SCALED ? UNIT : UNIT * load_as_float<SCALE_TYPE>(to.row_scales, at);
            terms.added[k] = BIAS ? load_as_float<X_TYPE>(to.bias, at) : 0.0f;
            if (RESIDUAL && has(tile, k)) terms.added[k] += load_as_float<X_TYPE>(to.residual, place(tile, k));
        }
        return terms;
    }

    __device__ __forceinline__ void write(int tile, const float (&sums)[4], const Terms& terms) const {
        float factor = 1.0f;
#if NORM
        float square = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) square += shared.squares[warp][token()];
        factor = rsqrtf(square / COLUMNS + to.eps);
#endif
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float value = fmaf(sums[k] * factor, terms.scale[k], terms.added[k]);
            if (GATE) value = value / (1.0f + __expf(-value)) * __shfl_down_sync(~0u, value, 2);
            if (has(tile, k)) store_float<X_TYPE>(to.y, place(tile, k), value);
        }
    }

    __device__ __forceinline__ Four* part(int turn, int block) const {
        const int turns = (TILES + stride - 1) / stride;
        return to.parts + ((blockIdx.x / SPLITS * turns + turn) * SPLITS + block) * TOKENS * 4 + number;
    }

    // Add up the sums of this block. Write y, or leave them to the last block, which writes those of the tile before.
    __device__ __forceinline__ void finish(u32 turn, int slot, u32 round, int tile) const {
#if SPLITS == 1
        const Terms terms = load_terms(tile);
#endif
        float sums[4] = {};
        shared.full[slot].wait(round);
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) add(sums, *(const float4*)&shared.own[warp].sums[slot][token()][row()]);
        __syncwarp();
        if (number % 32 == 0) shared.empty[slot].arrive();
#if SPLITS > 1
        leave(part(turn, split), *(const Four*)sums);
        if (turn > 0) collect(turn - 1, tile - stride);
#else
        write(tile, sums, terms);
#endif
    }

    // Add up the sums of all blocks, and write y. The last block waits only for blocks before it, which have been started.
    __device__ __forceinline__ void collect(u32 turn, int tile) const {
#if SPLITS > 1
        if (split < SPLITS - 1) return;
        const Terms terms = load_terms(tile);
        Four found[SPLITS];
        float sums[4] = {};
#pragma unroll
        for (int block = 0; block < SPLITS; block++) found[block] = peek(part(turn, block));
#pragma unroll
        for (int block = 0; block < SPLITS; block++) take(sums, part(turn, block), found[block]);
        write(tile, sums, terms);
#endif
    }
};
