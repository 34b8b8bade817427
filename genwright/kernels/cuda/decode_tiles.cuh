// Tiles of 16 keys or values in shared memory, and attention over one of them. For decode_attention.cu.

#define SHARE (HEADS / KV_HEADS)
#define QUERIES 8  // columns of the right matrix, of which SHARE are used
#define KEYS 16    // per tile
#define HALF (HEAD_DIM / 2)
#define CHANNELS (16 / X_BYTES)       // per chunk
#define CHUNKS (HEAD_DIM / CHANNELS)  // per key
#define SEGMENTS (HEAD_DIM / 16)      // of a head, each the depth or the rows of one mma
#define TILE_BYTES (KEYS * CHUNKS * 16)
#define QUERY_BYTES (HEAD_DIM * X_BYTES + 16)  // padded against bank conflicts, which took 0.4 us at a batch of 1
#define LONG_RUN 5                             // pages of a block that are worth a merge of twice as many blocks
#define MASKED -1e30f

// Where a chunk of a tile is: swizzled, so that the same chunk of eight consecutive rows is in eight different banks.
__device__ __forceinline__ u32 place(u32 tile, int row, int chunk) {
    const int swizzle = CHUNKS >= 8 ? row % 8 : row / (8 / CHUNKS) % CHUNKS;
    return tile + (row * CHUNKS + (chunk ^ swizzle)) * 16;
}

struct Softmax {  // of one warp. A lane has two queries: 2 (lane % 4) and the next one
    float maximum[2], total[2];
    float acc[SEGMENTS][4];  // channels lane / 4 and lane / 4 + 8 of each segment, two queries each
};

#if X_TYPE == F32
// Without tensor cores, with the elements of the result in the same lanes.
__device__ __forceinline__ void score(float (&s)[4], u32 tile, const float (*q)[QUERY_BYTES / 4], int lane) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s[j] = 0.0f;
        const float* query = q[lane % 4 * 2 + j % 2];
#pragma unroll 1
        for (int c = 0; c < CHUNKS; c++) {
            const float4 k = *(const float4*)__cvta_shared_to_generic(place(tile, lane / 4 + j / 2 * 8, c));
            s[j] = fmaf(k.x, query[4 * c], fmaf(k.y, query[4 * c + 1], s[j]));
            s[j] = fmaf(k.z, query[4 * c + 2], fmaf(k.w, query[4 * c + 3], s[j]));
        }
    }
}

__device__ __forceinline__ void add_values(Softmax& s, const float (&p)[4], u32 tile, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll 1
        for (int k = 0; k < 8; k++) {
            float weight[2];
#pragma unroll
            for (int c = 0; c < 2; c++) weight[c] = __shfl_sync(~0u, p[half * 2 + c], k * 4 + lane % 4);
#pragma unroll
            for (int i = 0; i < 2 * SEGMENTS; i++) {
                const int channel = lane / 4 + 8 * i;
                const u32 at = place(tile, half * 8 + k, channel / 4) + channel % 4 * 4;
                const float v = *(const float*)__cvta_shared_to_generic(at);
#pragma unroll
                for (int c = 0; c < 2; c++) s.acc[i / 2][i % 2 * 2 + c] = fmaf(v, weight[c], s.acc[i / 2][i % 2 * 2 + c]);
            }
        }
}
#else
#if X_TYPE == BF16
#define MMA_TYPE "bf16"
#else
#define MMA_TYPE "f16"
#endif

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// s = K q^T: keys lane / 4 and lane / 4 + 8, two queries each.
__device__ __forceinline__ void score(float (&s)[4], u32 tile, const u32 (&q)[SEGMENTS][2], int lane) {
    float sums[2][4] = {};  // two, because each product waits for the one before it
#pragma unroll
    for (int i = 0; i < SEGMENTS; i++) {
        u32 a[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(place(tile, lane % 16, 2 * i + lane / 16))
                     : "memory");
        multiply(sums[i % 2], a, q[i][0], q[i][1]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) s[j] = sums[0][j] + sums[1][j];
}

// acc += V^T p, with p in the layout of `score`, transposed in registers.
__device__ __forceinline__ void add_values(Softmax& s, const float (&p)[4], u32 tile, int lane) {
    u32 b[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        asm("cvt.rn." MMA_TYPE "x2.f32 %0, %1, %2;" : "=r"(b[i]) : "f"(p[2 * i + 1]), "f"(p[2 * i]));
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(b[i]));
    }
#pragma unroll
    for (int i = 0; i < SEGMENTS; i++) {
        u32 a[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(place(tile, lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2))
                     : "memory");
        multiply(s.acc[i], a, b[0], b[1]);
    }
}
#endif

// The weights p of a tile's scores; the earlier tiles' sums shrink to the new maximum.
__device__ __forceinline__ void weigh(Softmax& s, float (&p)[4], float scale, const bool (&seen)[2]) {
    float shrink[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float low = seen[0] ? p[c] * scale : MASKED, high = seen[1] ? p[c + 2] * scale : MASKED;
        float maximum = fmaxf(s.maximum[c], fmaxf(low, high));
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
        p[c] = seen[0] ? exp2f(low - maximum) : 0.0f;
        p[c + 2] = seen[1] ? exp2f(high - maximum) : 0.0f;
        shrink[c] = exp2f(s.maximum[c] - maximum);
        s.maximum[c] = maximum;
        s.total[c] = fmaf(s.total[c], shrink[c], p[c] + p[c + 2]);  // of this lane's keys
    }
#pragma unroll
    for (int i = 0; i < SEGMENTS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s.acc[i][j] *= shrink[j % 2];
}
