// One new token of each sequence: norms and RoPE of its q and k, the write of k and v to the cache's page, and attention over
// the sequence's pages, in one launch. Between two products of one token a launch costs more than this arithmetic.
//
// A block serves one key-value head of one sequence and a run of its pages. A key's channels lie 16 bytes to a lane; the
// groups of lanes that this makes take a page's keys in turn, each with a softmax of its own, and these are merged at the
// end. A sequence of few pages has one block; the parts of longer ones are merged by the block that comes last.
//
// The macros: X_TYPE, HEADS, KV_HEADS, HEAD_DIM, PAGE (tokens), SPLITS (blocks per sequence and head), THREADS,
// FEW (at most one block per processor); the switches NORM, ROPE, PDL.

#include "types.cuh"

#define SHARE (HEADS / KV_HEADS)
#define FEWEST_PAGES (SHARE > 1 ? 1 : 4)  // of a block: heads that share a page make it worth one
#define HALF (HEAD_DIM / 2)
#define BYTES (X_TYPE == F32 ? 4 : 2)
#define PER (16 / BYTES)          // channels of a lane
#define LANES (HEAD_DIM / PER)    // of a key
#define AT_ONCE (THREADS / LANES) // keys
#define TURNS (PAGE / AT_ONCE)    // keys of a group in a page
#define NEVER -1e30f

__device__ __forceinline__ void widen(const Chunk& chunk, float (&values)[PER]) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const u32 word = chunk.w[i * BYTES / 4];
        values[i] = X_TYPE == F32    ? from_bits(word)
                    : X_TYPE == BF16 ? from_bits(i % 2 ? word & 0xFFFF0000u : word << 16)
                                   : half_to_float((u16)(i % 2 ? word >> 16 : word));
    }
}

struct Keys {  // of one page, and their values
    Chunk key[TURNS], value[TURNS];
};

struct Softmax {  // of one group of lanes: for each head the largest score, the sum, and this lane's channels
    float most[SHARE], total[SHARE], mixed[SHARE][PER];
};

__device__ __forceinline__ void add_key(Softmax& s, const float (&q)[SHARE][PER], const Chunk& key,
                                        const Chunk& value, bool seen) {
    float k[PER], v[PER];
    widen(key, k);
    widen(value, v);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++) score = fmaf(q[h][i], k[i], score);
#pragma unroll
        for (int offset = LANES / 2; offset; offset /= 2) score += __shfl_xor_sync(~0u, score, offset);
        score = seen ? score : NEVER;
        const float most = fmaxf(s.most[h], score);
        const float shrink = exp2f(s.most[h] - most), p = seen ? exp2f(score - most) : 0.0f;
        s.most[h] = most;
        s.total[h] = fmaf(s.total[h], shrink, p);
#pragma unroll
        for (int i = 0; i < PER; i++) s.mixed[h][i] = fmaf(s.mixed[h][i], shrink, p * v[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, FEW ? 1 : SHARE <= 2 ? 4 : 2)
decode_attention(const void* qkv, const float* cos, const float* sin, const long* positions, const long* slots, const long* lengths,
       const long* page_table, int table_stride, void* k_cache, void* v_cache, const void* q_norm, const void* k_norm,
       float eps, float scale, int window, float* parts, int* arrivals, void* out) {
    __shared__ float shared_q[SHARE][HEAD_DIM];
    __shared__ __align__(16) u8 fresh[2][HEAD_DIM * BYTES];  // the new key and value, rounded as the cache's are
    __shared__ float warp_most[THREADS / 32][SHARE], warp_total[THREADS / 32][SHARE];
    __shared__ float warp_mixed[THREADS / 32][SHARE][HEAD_DIM];
    __shared__ int last;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int head = blockIdx.x, split = blockIdx.y, b = blockIdx.z;
    join_stream();
    const int length = (int)lengths[b];
    if (length == 0) {  // padding
        if (split == 0)
            for (int i = thread; i < SHARE * HEAD_DIM; i += THREADS)
                store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, 0.0f);
        return;
    }
    const int first = window ? max(length - window, 0) : 0;
    const int low = first / PAGE, pages = (length - 1) / PAGE + 1 - low;
    const int run = max((pages + SPLITS - 1) / SPLITS, FEWEST_PAGES), blocks = (pages + run - 1) / run;
    if (split >= blocks) return;
    const int begin = low + split * run, end = min(begin + run, low + pages);
    const bool newest = split == blocks - 1;  // has the new token's page

    // Keys are asked for a page ahead, the first while q is being made, and a page's number a page before that. Where
    // there are many blocks, a page is asked for when the one before is done: that takes fewer registers, and a second
    // block on the same processor fills the pause.
    const int member = thread % LANES, group = thread / LANES;
    const Chunk *keys = (const Chunk*)k_cache, *values = (const Chunk*)v_cache;
    const long* table = page_table + (long)b * table_stride;
    auto sees = [&](int page, int i) {
        const int position = page * PAGE + group + i * AT_ONCE;
        return page < end && position >= first && position < length - 1;
    };
    auto fetch = [&](Keys& some, int page, long number) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const long at = ((number * PAGE + group + i * AT_ONCE) * KV_HEADS + head) * LANES + member;
            load_chunk(some.key[i], keys + at, sees(page, i));
            load_chunk(some.value[i], values + at, sees(page, i));
        }
    };
    Keys even{};  // what is not read stays finite
    fetch(even, begin, table[begin]);
    long number = table[min(begin + 1, end - 1)];

    // A warp per head: q's that share this key, and k.
    const long row = (long)b * (HEADS + 2 * KV_HEADS);
    for (int h = warp; h <= SHARE; h += THREADS / 32) {
        const bool is_k = h == SHARE;
        const long from = (row + (is_k ? HEADS + head : head * SHARE + h)) * HEAD_DIM;
        float x1[(HALF + 31) / 32], x2[(HALF + 31) / 32], square = 0.0f;
#pragma unroll
        for (int i = 0; i < (HALF + 31) / 32; i++) {
            const int d = lane + 32 * i;
            x1[i] = d < HALF ? load_as_float<X_TYPE>(qkv, from + d) : 0.0f;
            x2[i] = d < HALF ? load_as_float<X_TYPE>(qkv, from + HALF + d) : 0.0f;
            square += x1[i] * x1[i] + x2[i] * x2[i];
        }
        if (NORM)
#pragma unroll
            for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
        const float factor = NORM ? rsqrtf(square / HEAD_DIM + eps) : 1.0f;
#pragma unroll
        for (int i = 0; i < (HALF + 31) / 32; i++) {
            const int d = lane + 32 * i;
            if (d >= HALF) continue;
            float y1 = x1[i], y2 = x2[i];
            if (NORM) {
                const void* gain = is_k ? k_norm : q_norm;
                y1 = rounded<X_TYPE>(rounded<X_TYPE>(y1 * factor) * load_as_float<X_TYPE>(gain, d));
                y2 = rounded<X_TYPE>(rounded<X_TYPE>(y2 * factor) * load_as_float<X_TYPE>(gain, HALF + d));
            }
            if (ROPE) {
                const long angle = positions[b] * HALF + d;
                const float c = cos[angle], s = sin[angle], z1 = y1;
                y1 = y1 * c - y2 * s;
                y2 = y2 * c + z1 * s;
            }
            if (is_k) {
                store_float<X_TYPE>(fresh[0], d, y1);
                store_float<X_TYPE>(fresh[0], HALF + d, y2);
            } else {
                shared_q[h][d] = rounded<X_TYPE>(y1) * scale;
                shared_q[h][HALF + d] = rounded<X_TYPE>(y2) * scale;
            }
        }
    }
    const long value_row = (row + HEADS + KV_HEADS + head) * HEAD_DIM;
    for (int d = thread; d < HEAD_DIM; d += THREADS) store_float<X_TYPE>(fresh[1], d, load_as_float<X_TYPE>(qkv, value_row + d));
    __syncthreads();
    const long slot = slots[b];
    if (newest && thread < 2 * LANES && slot >= 0) {
        Chunk* cache = (Chunk*)(thread < LANES ? k_cache : v_cache);
        cache[(slot * KV_HEADS + head) * LANES + thread % LANES] = ((const Chunk*)fresh[thread / LANES])[thread % LANES];
    }

    float q[SHARE][PER];
    Softmax s;
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        s.most[h] = NEVER;
        s.total[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            q[h][i] = shared_q[h][member * PER + i];
            s.mixed[h][i] = 0.0f;
        }
    }
    auto fetch_next = [&](Keys& next, int page) {
        fetch(next, page + 1, number);
        number = table[min(page + 2, end - 1)];
    };
    auto read = [&](const Keys& now, int page) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) add_key(s, q, now.key[i], now.value[i], sees(page, i));
    };
#if FEW
    Keys odd{};
    for (int page = begin; page < end; page += 2) {
        fetch_next(odd, page);
        read(even, page);
        if (page + 1 == end) break;
        fetch_next(even, page + 1);
        read(odd, page + 1);
    }
#else
    for (int page = begin; page < end; page++) {
        read(even, page);
        fetch_next(even, page);
    }
#endif
    if (newest && warp == 0)  // the new token itself, by the first group
        add_key(s, q, ((const Chunk*)fresh[0])[member], ((const Chunk*)fresh[1])[member], group == 0);

    // The groups of a warp, then the warps, then the blocks.
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float most = s.most[h];
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
        const float shrink = exp2f(s.most[h] - most);
        float total = s.total[h] * shrink;
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
#pragma unroll
        for (int i = 0; i < PER; i++) {
            float mixed = s.mixed[h][i] * shrink;
#pragma unroll
            for (int offset = LANES; offset < 32; offset *= 2) mixed += __shfl_xor_sync(~0u, mixed, offset);
            if (lane < LANES) warp_mixed[warp][h][member * PER + i] = mixed;
        }
        if (lane == 0) {
            warp_most[warp][h] = most;
            warp_total[warp][h] = total;
        }
    }
    __syncthreads();
    const long mine = ((long)b * KV_HEADS + head) * SPLITS + split;
    float* part = parts + mine * SHARE * (HEAD_DIM + 2);  // [SHARE][most, total, channels]
    for (int i = thread; i < SHARE * HEAD_DIM; i += THREADS) {
        const int h = i / HEAD_DIM, d = i % HEAD_DIM;
        float most = NEVER, total = 0.0f, mixed = 0.0f;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) most = fmaxf(most, warp_most[w][h]);
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            const float shrink = exp2f(warp_most[w][h] - most);
            total = fmaf(warp_total[w][h], shrink, total);
            mixed = fmaf(warp_mixed[w][h][d], shrink, mixed);
        }
        if (blocks == 1) {
            store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, mixed / total);
        } else {
            part[h * (HEAD_DIM + 2) + 2 + d] = mixed;
            if (d == 0) {
                part[h * (HEAD_DIM + 2)] = most;
                part[h * (HEAD_DIM + 2) + 1] = total;
            }
        }
    }
    if (blocks == 1) return;
    __threadfence();
    __syncthreads();
    int* arrived = arrivals + b * KV_HEADS + head;
    if (thread == 0) last = atomicAdd(arrived, 1) == blocks - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (thread == 0) *arrived = 0;
    const volatile float* all = parts + (mine - split) * SHARE * (HEAD_DIM + 2);
    for (int i = thread; i < SHARE * HEAD_DIM; i += THREADS) {
        const int h = i / HEAD_DIM, d = i % HEAD_DIM;
        float most = NEVER, total = 0.0f, mixed = 0.0f;
        for (int j = 0; j < blocks; j++) most = fmaxf(most, all[(j * SHARE + h) * (HEAD_DIM + 2)]);
#pragma unroll 4
        for (int j = 0; j < blocks; j++) {
            const volatile float* other = all + (j * SHARE + h) * (HEAD_DIM + 2);
            const float shrink = exp2f(other[0] - most);
            total = fmaf(other[1], shrink, total);
            mixed = fmaf(other[2 + d], shrink, mixed);
        }
        store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, mixed / total);
    }
}
