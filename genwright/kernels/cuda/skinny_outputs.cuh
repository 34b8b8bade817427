// What skinny.cu writes: y, from the sums of a tile of rows, or the sums themselves where a later block finishes the tile.

#define SUM_PITCH (BLOCK_ROWS + 4)  // lanes of a warp write their sums to different banks

struct Outputs {
    const void *bias, *residual, *row_scales;
    void* y;
    u32* parts;  // [block][token][row]: the sums of a block's tile that a later block finishes
    int tokens;

    __device__ __forceinline__ Four* part(int block, int token, int row) const {
        return (Four*)(parts + (long)(block * TOKENS + token) * BLOCK_ROWS + row);
    }

    __device__ __forceinline__ float total(float sum, int row) const {
        sum *= row_scales ? UNIT * load_as_float<SCALE_TYPE>(row_scales, row) : UNIT;
        return bias ? sum + load_as_float<X_TYPE>(bias, row) : sum;
    }

    __device__ __forceinline__ void store(int output, int token, float sum, float up) const {
        float value = total(sum, output);
        if (GATE) value = value / (1.0f + __expf(-value)) * total(up, output + OUTPUTS);
        const long at = (long)token * OUTPUTS + output;
        if (residual) value += load_as_float<X_TYPE>(residual, at);
        store_float<X_TYPE>(y, at, value);
    }
};

// Write the outputs of a tile from its sums, by COUNT threads. If a later block has the tile's end, leave the sums to it; if
// this block has, and with FINAL, add those of earlier blocks.
template <int COUNT, bool FINAL>
__device__ __forceinline__ void finish(const Outputs& to, const float* sums, int tile, int thread) {
    const int first = block_of(tile * STEPS), last = block_of(tile * STEPS + STEPS - 1);
    if (blockIdx.x != last) {
#pragma unroll 4
        for (int i = thread; i < BLOCK_ROWS / 4 * to.tokens; i += COUNT) {
            const int token = i / (BLOCK_ROWS / 4), row = i % (BLOCK_ROWS / 4) * 4;
            leave(to.part(blockIdx.x, token, row), *(const Four*)(sums + token * SUM_PITCH + row));
        }
        return;
    }
    constexpr int HALVES = GATE ? 2 : 1;
    for (int i = thread; i < TILE_OUTPUTS / 4 * to.tokens; i += COUNT) {
        const int token = i / (TILE_OUTPUTS / 4), output = i % (TILE_OUTPUTS / 4) * 4;
        const int row = GATE ? output / 8 * 16 + output % 8 : output;  // the up-projection's is eight rows further
        float sum[2][4] = {};
        Four found[MOST_BEFORE][HALVES];
#pragma unroll
        for (int k = 0; k < MOST_BEFORE * HALVES && FINAL; k++)
            if (first + k / HALVES < last)
                found[k / HALVES][k % HALVES] = peek(to.part(first + k / HALVES, token, row + k % HALVES * 8));
#pragma unroll
        for (int k = 0; k < MOST_BEFORE * HALVES && FINAL; k++)
            if (first + k / HALVES < last)
                take(sum[k % HALVES], to.part(first + k / HALVES, token, row + k % HALVES * 8), found[k / HALVES][k % HALVES]);
#pragma unroll
        for (int k = 0; k < 4 * HALVES; k++) sum[k / 4][k % 4] += sums[token * SUM_PITCH + row + k / 4 * 8 + k % 4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int at = tile * TILE_OUTPUTS + output + k;
            if (WHOLE_TILES || at < OUTPUTS) to.store(at, token, sum[0][k], sum[1][k]);
        }
    }
}
