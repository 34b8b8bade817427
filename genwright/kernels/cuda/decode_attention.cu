// Decode attention for one new token per sequence, in one launch: norms and RoPE of q and k, the write of k and v to the
// cache, and attention over the sequence's pages. One launch, because at this size a launch costs more than its arithmetic.
//
// A block computes one key-value head of one sequence over a range of its pages. A lane holds 16 bytes of a key. The lanes
// that hold one key form a group; the groups of a block take the keys of a page in turn, each with its own online softmax,
// and are merged at the end. A long sequence is split over several blocks; the last one to finish merges their results.
//
// It is the faster kernel where each key-value head has one query head, as in Llama-2-7B: there it took 2 to 7 % less
// time than `grouped_decode_attention.cu`, whose tensor cores then compute columns that nobody needs.
//
// Macros: X_TYPE, HEADS, KV_HEADS, HEAD_DIM, PAGE (tokens), SPLITS (blocks per sequence and head), THREADS,
// ONE_WAVE (at most one block per multiprocessor); flags NORM, ROPE, PDL.

#include "types.cuh"
#include "angles.cuh"

#define SHARE (HEADS / KV_HEADS)
#define MIN_PAGES (SHARE > 1 ? 1 : 4)  // per block; with several query heads per page, one page is enough work
#define HALF (HEAD_DIM / 2)
#define CHANNELS (16 / X_BYTES)      // per lane
#define LANES (HEAD_DIM / CHANNELS)  // per key
#define GROUPS (THREADS / LANES)     // keys that a block reads at once
#define TURNS (PAGE / GROUPS)        // keys of a page per group
#define MASKED -1e30f

__device__ __forceinline__ void widen(const Chunk& chunk, float (&values)[CHANNELS]) {
#pragma unroll
    for (int i = 0; i < CHANNELS; i++) {
        const u32 word = chunk.w[i * X_BYTES / 4];
        values[i] = X_TYPE == F32    ? from_bits(word)
                    : X_TYPE == BF16 ? from_bits(i % 2 ? word & 0xFFFF0000u : word << 16)
                                   : half_to_float((u16)(i % 2 ? word >> 16 : word));
    }
}

struct Keys {  // the keys and values of one page that this lane reads
    Chunk key[TURNS], value[TURNS];
};

struct Softmax {  // online softmax of one group: for each head the maximum, the sum, and this lane's channels
    float maximum[SHARE], total[SHARE], acc[SHARE][CHANNELS];
};

__device__ __forceinline__ void add_key(Softmax& s, const float (&q)[SHARE][CHANNELS], const Chunk& key,
                                        const Chunk& value, bool seen) {
    float k[CHANNELS], v[CHANNELS];
    widen(key, k);
    widen(value, v);
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float score = 0.0f;
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) score = fmaf(q[h][i], k[i], score);
#pragma unroll
        for (int offset = LANES / 2; offset; offset /= 2) score += __shfl_xor_sync(~0u, score, offset);
        score = seen ? score : MASKED;
        const float maximum = fmaxf(s.maximum[h], score);
        const float shrink = exp2f(s.maximum[h] - maximum), p = seen ? exp2f(score - maximum) : 0.0f;
        s.maximum[h] = maximum;
        s.total[h] = fmaf(s.total[h], shrink, p);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) s.acc[h][i] = fmaf(s.acc[h][i], shrink, p * v[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, ONE_WAVE ? 1 : SHARE <= 2 ? 4 : 2)
decode_attention(const void* qkv, const float* cos, const float* sin, const long* positions, const long* slots, const long* lengths,
       const long* page_table, int table_stride, void* k_cache, void* v_cache, const void* q_norm, const void* k_norm,
       float eps, float scale, int window, float* parts, int* arrivals, void* out) {
    __shared__ float shared_q[SHARE][HEAD_DIM];
    __shared__ __align__(16) u8 new_kv[2][HEAD_DIM * X_BYTES];  // the new key and value in the cache's dtype
    __shared__ float warp_maximum[THREADS / 32][SHARE], warp_total[THREADS / 32][SHARE];
    __shared__ float warp_acc[THREADS / 32][SHARE][HEAD_DIM];
    __shared__ int last;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int head = blockIdx.x, split = blockIdx.y, b = blockIdx.z;
    start_next();
    const int length = (int)lengths[b];
    const int first = window ? max(length - window, 0) : 0;
    const int low = first / PAGE, pages = (length - 1) / PAGE + 1 - low;
    const int run = max((pages + SPLITS - 1) / SPLITS, MIN_PAGES), blocks = (pages + run - 1) / run;
    const int begin = low + split * run, end = min(begin + run, low + pages);
    const bool newest = split == blocks - 1;  // this block's range has the new token's page

    // With ONE_WAVE, keys are loaded one page ahead (the first while q is computed) and page numbers two pages ahead.
    // With more blocks, a page is loaded after the previous one is done: that takes fewer registers, and another block on
    // the same multiprocessor hides the latency.
    const int member = thread % LANES, group = thread / LANES;
    const Chunk *keys = (const Chunk*)k_cache, *values = (const Chunk*)v_cache;
    const long* table = page_table + (long)b * table_stride;
    auto sees = [&](int page, int i) {
        const int position = page * PAGE + group + i * GROUPS;
        return page < end && position >= first && position < length - 1;
    };
    auto fetch = [&](Keys& some, int page, long number) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const long at = ((number * PAGE + group + i * GROUPS) * KV_HEADS + head) * LANES + member;
            load_chunk(some.key[i], keys + at, sees(page, i));
            load_chunk(some.value[i], values + at, sees(page, i));
        }
    };
    // What earlier forward passes wrote, and the angles, are loaded before the wait for q, k and v.
    Keys even{};  // zeros, so that masked keys stay finite
    fetch(even, begin, table[min(begin, end - 1)]);
    long number = table[min(begin + 1, end - 1)];
    const Angles angles = load_angles(cos, sin, positions + b, lane);
    const long slot = slots[b];
    wait_for_previous();
    if (length == 0) {  // padding
        if (split == 0)
            for (int i = thread; i < SHARE * HEAD_DIM; i += THREADS)
                store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, 0.0f);
        return;
    }
    if (split >= blocks) return;

    // One warp per head: the query heads of this key-value head, then k.
    const long row = (long)b * (HEADS + 2 * KV_HEADS);
    Chunk new_value;
    load_chunk(new_value, (const Chunk*)qkv + (row + HEADS + KV_HEADS + head) * LANES + thread, thread < LANES);
    for (int h = warp; h <= SHARE; h += THREADS / 32) {
        const bool is_k = h == SHARE;
        const long from = (row + (is_k ? HEADS + head : head * SHARE + h)) * HEAD_DIM;
        float x1[PAIRS], x2[PAIRS], square = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
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
        for (int i = 0; i < PAIRS; i++) {
            const int d = lane + 32 * i;
            if (d >= HALF) continue;
            float y1 = x1[i], y2 = x2[i];
            if (NORM) {
                const void* gain = is_k ? k_norm : q_norm;
                y1 = rounded<X_TYPE>(rounded<X_TYPE>(y1 * factor) * load_as_float<X_TYPE>(gain, d));
                y2 = rounded<X_TYPE>(rounded<X_TYPE>(y2 * factor) * load_as_float<X_TYPE>(gain, HALF + d));
            }
            if (ROPE) rotate(angles, i, y1, y2);
            if (is_k) {
                store_float<X_TYPE>(new_kv[0], d, y1);
                store_float<X_TYPE>(new_kv[0], HALF + d, y2);
            } else {
                shared_q[h][d] = rounded<X_TYPE>(y1) * scale;
                shared_q[h][HALF + d] = rounded<X_TYPE>(y2) * scale;
            }
        }
    }
    if (thread < LANES) ((Chunk*)new_kv[1])[thread] = new_value;
    __syncthreads();
    if (newest && thread < 2 * LANES && slot >= 0) {
        Chunk* cache = (Chunk*)(thread < LANES ? k_cache : v_cache);
        cache[(slot * KV_HEADS + head) * LANES + thread % LANES] = ((const Chunk*)new_kv[thread / LANES])[thread % LANES];
    }

    float q[SHARE][CHANNELS];
    Softmax s;
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        s.maximum[h] = MASKED;
        s.total[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            q[h][i] = shared_q[h][member * CHANNELS + i];
            s.acc[h][i] = 0.0f;
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
#if ONE_WAVE
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
    if (newest && warp == 0)  // the first group adds the new token itself
        add_key(s, q, ((const Chunk*)new_kv[0])[member], ((const Chunk*)new_kv[1])[member], group == 0);

    // Merge the groups of a warp, then the warps, then the blocks.
#pragma unroll
    for (int h = 0; h < SHARE; h++) {
        float maximum = s.maximum[h];
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, offset));
        const float shrink = exp2f(s.maximum[h] - maximum);
        float total = s.total[h] * shrink;
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
#pragma unroll
        for (int i = 0; i < CHANNELS; i++) {
            float acc = s.acc[h][i] * shrink;
#pragma unroll
            for (int offset = LANES; offset < 32; offset *= 2) acc += __shfl_xor_sync(~0u, acc, offset);
            if (lane < LANES) warp_acc[warp][h][member * CHANNELS + i] = acc;
        }
        if (lane == 0) {
            warp_maximum[warp][h] = maximum;
            warp_total[warp][h] = total;
        }
    }
    __syncthreads();
    const long mine = ((long)b * KV_HEADS + head) * SPLITS + split;
    float* part = parts + mine * SHARE * (HEAD_DIM + 2);  // [SHARE][maximum, total, channels]
    for (int i = thread; i < SHARE * HEAD_DIM; i += THREADS) {
        const int h = i / HEAD_DIM, d = i % HEAD_DIM;
        float maximum = MASKED, total = 0.0f, acc = 0.0f;
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) maximum = fmaxf(maximum, warp_maximum[w][h]);
#pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            const float shrink = exp2f(warp_maximum[w][h] - maximum);
            total = fmaf(warp_total[w][h], shrink, total);
            acc = fmaf(warp_acc[w][h][d], shrink, acc);
        }
        if (blocks == 1) {
            store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, acc / total);
        } else {
            part[h * (HEAD_DIM + 2) + 2 + d] = acc;
            if (d == 0) {
                part[h * (HEAD_DIM + 2)] = maximum;
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
        float maximum = MASKED, total = 0.0f, acc = 0.0f;
        for (int j = 0; j < blocks; j++) maximum = fmaxf(maximum, all[(j * SHARE + h) * (HEAD_DIM + 2)]);
#pragma unroll 4
        for (int j = 0; j < blocks; j++) {
            const volatile float* other = all + (j * SHARE + h) * (HEAD_DIM + 2);
            const float shrink = exp2f(other[0] - maximum);
            total = fmaf(other[1], shrink, total);
            acc = fmaf(other[2 + d], shrink, acc);
        }
        store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, acc / total);
    }
}
