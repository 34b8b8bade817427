// `decode_attention.cu` on the tensor cores, for models in which several query heads share a key-value head.
//
// A block computes one key-value head of one sequence over a range of its pages. Its warps take tiles of 16 keys in turn.
// Each warp copies its own tiles to shared memory, RING at a time (keys, values, keys, ...), and has an online softmax of its
// own, so that warps do not wait for each other before they are merged at the end. On the tensor cores the 16 keys are the
// rows of the left matrix and the query heads that share them the 8 columns of the right one. Arithmetic in float32, at 190
// instructions per key and lane, was the limit before: 2.9 TB/s where the memory gives 4.6.
//
// Blocks read about equally many pages: each finds its range from all lengths (`find`). A sequence longer than that is split
// over several blocks; the last one to finish merges their results.
//
// Macros: X_TYPE, HEADS, KV_HEADS, HEAD_DIM, PAGE (tokens), WHOLE_PAGES (the longest sequence that is never split), RING,
// THREADS, BLOCKS (per multiprocessor); flags NORM, ROPE, PDL.

#include "types.cuh"
#include "angles.cuh"
#include "shared_memory.cuh"
#include "copies.cuh"
#include "decode_tiles.cuh"

struct Range {  // of one block: the `split`-th of `blocks` equal parts of a sequence's pages
    int sequence, split, blocks;
};

// The range of block `index`, or sequence -1 if there is none for it. `target` blocks would get equally many pages, or
// `short_target` if that were few pages, but a sequence has a whole number of blocks. Every warp computes this by itself, without a barrier. Blocks of split sequences
// come first, because they read the most pages and must not start last; so their results have the first places in `parts`.
template <typename Pages>
__device__ __forceinline__ Range find(int index, int sequences, int target, int short_target, int lane, Pages pages_of) {
    int pages = 0, most = 0;
#pragma unroll 4
    for (int b = lane; b < sequences; b += 32) {
        const int some = pages_of(b);
        pages += some;
        most = max(most, some);
    }
    pages = __reduce_add_sync(~0u, pages);
    most = __reduce_max_sync(~0u, most);
    int run = (pages + target - 1) / target;
    if (run < LONG_RUN) run = (pages + short_target - 1) / short_target;
    if (most <= WHOLE_PAGES || 2 * most <= 3 * run) return {index < sequences ? index : -1, 0, 1};  // none is split
    auto blocks_of = [&](int pages) { return pages <= run ? 1 : (pages + run - 1) / run; };
    if (sequences == 1) return {index < blocks_of(pages) ? 0 : -1, index, blocks_of(pages)};

    auto count = [](int blocks) { return blocks > 1 ? blocks : 1 << 16; };  // low half: of split sequences; high half: others
    int mine = 0;
    for (int b = lane; b < sequences; b += 32) mine += count(blocks_of(pages_of(b)));
    int sum = mine;  // of this lane's sequences and those of the lanes before it
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const int before = __shfl_up_sync(~0u, sum, offset);
        sum += lane >= offset ? before : 0;
    }
    const int of_split = __shfl_sync(~0u, sum, 31) & 0xFFFF, shift = index < of_split ? 0 : 16;
    index -= index < of_split ? 0 : of_split;
    const u32 owners = __ballot_sync(~0u, index < (sum >> shift & 0xFFFF));
    if (!owners) return {-1, 0, 0};
    const int owner = __ffs(owners) - 1;
    Range range{0, index - ((sum - mine) >> shift & 0xFFFF), 1};
    if (lane == owner)
        for (int b = lane; b < sequences; b += 32) {
            range.sequence = b;
            range.blocks = blocks_of(pages_of(b));
            const int places = count(range.blocks) >> shift & 0xFFFF;
            if (range.split < places) break;
            range.split -= places;
        }
    return {__shfl_sync(~0u, range.sequence, owner), __shfl_sync(~0u, range.split, owner), __shfl_sync(~0u, range.blocks, owner)};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
grouped_decode_attention(const void* qkv, const float* cos, const float* sin, const long* positions, const long* slots, const long* lengths,
       const long* page_table, int table_stride, void* k_cache, void* v_cache, const void* q_norm, const void* k_norm,
       float eps, float scale, int window, int sequences, int target, int short_target, float4* parts, float2* stats,
       int* arrivals, void* out) {
    extern __shared__ __align__(128) u8 rings[];                        // [WARPS][RING][TILE_BYTES]
    __shared__ __align__(16) u8 queries[QUERIES][QUERY_BYTES];
    __shared__ __align__(16) u8 new_kv[2][HEAD_DIM * X_BYTES];  // the new key and value in the cache's dtype
    __shared__ float warp_maximum[WARPS][SHARE], warp_total[WARPS][SHARE];
    __shared__ int last;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, head = blockIdx.x;
    // Only queries past SHARE, because the others are written below without a barrier before.
    for (int i = SHARE * QUERY_BYTES / 16 + thread; i < sizeof(queries) / 16; i += THREADS) ((Chunk*)queries)[i] = Chunk{};
    start_next();
    auto first_key = [&](int length) { return window ? max(length - window, 0) : 0; };
    const Range range = find(blockIdx.y, sequences, target, short_target, lane, [&](int b) {
        const int length = (int)lengths[b];
        return length ? (length - 1) / PAGE + 1 - first_key(length) / PAGE : 0;
    });
    const bool idle = range.sequence < 0;  // a block without a range takes no pages of the first sequence
    const int b = idle ? 0 : range.sequence, split = idle ? 0 : range.split, blocks = idle ? 1 : range.blocks;
    const int length = idle ? 0 : (int)lengths[b], first = first_key(length);
    const int low = first / PAGE, pages = (length - 1) / PAGE + 1 - low;
    const int begin = low + pages * split / blocks, end = low + pages * (split + 1) / blocks;
    const bool newest = split == blocks - 1;  // this block's range has the new token's page

    // A lane holds every 32nd page number, from which the lanes of its warp get them; the next 32 are loaded when needed.
    const long* table = page_table + (long)b * table_stride;
    int numbers = (int)table[min(begin + lane, end - 1)], held = 0;

    // What earlier forward passes wrote, and the angles, are loaded before the wait for q, k and v.
    constexpr int ROUNDS = (SHARE + WARPS) / WARPS;
    const Angles angles = load_angles(cos, sin, positions + b, lane);
    const long slot = slots[b];

    // Copies 2 i and 2 i + 1 of a warp are the keys and the values of its i-th tile.
    const u32 ring = (u32)__cvta_generic_to_shared(rings) + warp * RING * TILE_BYTES;
    auto start_of = [&](int copy) { return begin * PAGE + (copy / 2 * WARPS + warp) * KEYS; };  // position of its first key
    const int limit = min(end * PAGE, length);
    auto copy = [&](int i) {
        const int start = start_of(i), page = start / PAGE - begin;
        if (start < limit) {
            if (page / 32 != held) {
                held = page / 32;
                numbers = (int)table[min(begin + held * 32 + lane, end - 1)];
            }
            const long number = __shfl_sync(~0u, numbers, page % 32);
            const Chunk* from = (const Chunk*)(i % 2 ? v_cache : k_cache);
#pragma unroll
            for (int j = 0; j < KEYS * CHUNKS / 32; j++) {
                const int key = (j * 32 + lane) / CHUNKS, chunk = lane % CHUNKS, position = start + key;
                const long at = ((number * PAGE + position % PAGE) * KV_HEADS + head) * CHUNKS + chunk;
                // The new token's row is not in the cache yet.
                copy_async(place(ring + i % RING * TILE_BYTES, key, chunk), from + at, position >= first && position < length - 1);
            }
        }
        commit_copies();
    };
#pragma unroll
    for (int i = 0; i < RING; i++) copy(i);
    wait_for_previous();
    if (idle) return;
    if (length == 0) {  // padding
        for (int i = thread; i < SHARE * HEAD_DIM; i += THREADS)
            store_float<X_TYPE>(out, ((long)b * HEADS + head * SHARE) * HEAD_DIM + i, 0.0f);
        return;
    }

    // One warp per head: the query heads of this key-value head, then k.
    const long row = (long)b * (HEADS + 2 * KV_HEADS);
    u32 bits[ROUNDS][PAIRS][2];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int h = warp + r * WARPS;
        const long from = (row + (h < SHARE ? head * SHARE + h : HEADS + head)) * HEAD_DIM;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int d = lane + 32 * i;
            bits[r][i][0] = d < HALF ? load_bits<X_TYPE>(qkv, from + d) : 0;
            bits[r][i][1] = d < HALF ? load_bits<X_TYPE>(qkv, from + HALF + d) : 0;
        }
    }
    Chunk new_value;
    load_chunk(new_value, (const Chunk*)qkv + (row + HEADS + KV_HEADS + head) * CHUNKS + thread, thread < CHUNKS);

#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int h = warp + r * WARPS;
        if (h > SHARE) break;
        const bool is_k = h == SHARE;
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const float x1 = from_stored<X_TYPE>(bits[r][i][0]), x2 = from_stored<X_TYPE>(bits[r][i][1]);
            square += x1 * x1 + x2 * x2;
        }
        if (NORM)
#pragma unroll
            for (int offset = 16; offset; offset /= 2) square += __shfl_xor_sync(~0u, square, offset);
        const float factor = NORM ? rsqrtf(square / HEAD_DIM + eps) : 1.0f;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int d = lane + 32 * i;
            if (d >= HALF) continue;
            float y1 = from_stored<X_TYPE>(bits[r][i][0]), y2 = from_stored<X_TYPE>(bits[r][i][1]);
            if (NORM) {
                const void* gain = is_k ? k_norm : q_norm;
                y1 = rounded<X_TYPE>(rounded<X_TYPE>(y1 * factor) * load_as_float<X_TYPE>(gain, d));
                y2 = rounded<X_TYPE>(rounded<X_TYPE>(y2 * factor) * load_as_float<X_TYPE>(gain, HALF + d));
            }
            if (ROPE) rotate(angles, i, y1, y2);
            void* to = is_k ? new_kv[0] : queries[h];
            store_float<X_TYPE>(to, d, y1);
            store_float<X_TYPE>(to, HALF + d, y2);
        }
    }
    if (thread < CHUNKS) ((Chunk*)new_kv[1])[thread] = new_value;
    __syncthreads();
    if (newest && thread < 2 * CHUNKS && slot >= 0) {
        Chunk* cache = (Chunk*)(thread < CHUNKS ? k_cache : v_cache);
        cache[(slot * KV_HEADS + head) * CHUNKS + thread % CHUNKS] = ((const Chunk*)new_kv)[thread];
    }

#if X_TYPE == F32
    const float(*q)[QUERY_BYTES / 4] = (const float(*)[QUERY_BYTES / 4])queries;
#else
    u32 q[SEGMENTS][2];
#pragma unroll
    for (int i = 0; i < 2 * SEGMENTS; i++) q[i / 2][i % 2] = ((const u32*)queries[lane / 4])[i * 4 + lane % 4];
#endif
    Softmax s{{MASKED, MASKED}};
    // Wait for a copy, and put the new token's row where it belongs.
    auto arrived = [&](int i) {
        const u32 tile = ring + i % RING * TILE_BYTES;
        const int at = length - 1 - start_of(i);
        wait_for_copies<RING - 1>();
        __syncwarp();
        if (at < KEYS) {
            if (lane < CHUNKS) *(Chunk*)__cvta_shared_to_generic(place(tile, at, lane)) = ((const Chunk*)new_kv[i % 2])[lane];
            __syncwarp();
        }
        return tile;
    };
    for (int i = 0; start_of(i) < limit; i += 2) {
        const int position = start_of(i) + lane / 4;
        const bool seen[2] = {position >= first && position < length, position + 8 >= first && position + 8 < length};
        float p[4];
        score(p, arrived(i), q, lane);
        __syncwarp();
        copy(i + RING);
        weigh(s, p, scale, seen);
        add_values(s, p, arrived(i + 1), lane);
        __syncwarp();
        copy(i + 1 + RING);
    }

    // Merge the lanes of a warp, then the warps, then the blocks. A warp's ring is free for its result, [SHARE][HEAD_DIM].
    auto result = [&](int w) { return (float4*)(rings + w * RING * TILE_BYTES); };
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int h = lane % 4 * 2 + c;
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) s.total[c] += __shfl_xor_sync(~0u, s.total[c], offset);
        if (h >= SHARE) continue;
        if (lane < 4) {
            warp_maximum[warp][h] = s.maximum[c];
            warp_total[warp][h] = s.total[c];
        }
#pragma unroll
        for (int i = 0; i < 2 * SEGMENTS; i++) ((float*)result(warp))[h * HEAD_DIM + 8 * i + lane / 4] = s.acc[i / 2][i % 2 * 2 + c];
    }
    __syncthreads();
    const long mine = (long)blockIdx.y * KV_HEADS + head;
    constexpr int VECTORS = HEAD_DIM / 4;
    auto store = [&](int i, const float4& acc, float total) {
        const long at = ((long)b * HEADS + head * SHARE) * HEAD_DIM + 4 * i;
        const float values[4] = {acc.x, acc.y, acc.z, acc.w};
#pragma unroll
        for (int j = 0; j < 4; j++) store_float<X_TYPE>(out, at + j, values[j] / total);
    };
    auto add = [](float4& acc, const float4& x, float weight) {
        acc.x = fmaf(x.x, weight, acc.x);
        acc.y = fmaf(x.y, weight, acc.y);
        acc.z = fmaf(x.z, weight, acc.z);
        acc.w = fmaf(x.w, weight, acc.w);
    };
    for (int i = thread; i < SHARE * VECTORS; i += THREADS) {
        const int h = i / VECTORS;
        float maximum = MASKED, total = 0.0f;
        float4 acc{};
#pragma unroll
        for (int w = 0; w < WARPS; w++) maximum = fmaxf(maximum, warp_maximum[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float shrink = exp2f(warp_maximum[w][h] - maximum);
            total = fmaf(warp_total[w][h], shrink, total);
            add(acc, result(w)[i], shrink);
        }
        if (blocks == 1) {
            store(i, acc, total);
        } else {
            parts[mine * SHARE * VECTORS + i] = acc;
            if (i % VECTORS == 0) stats[mine * SHARE + h] = float2{maximum, total};
        }
    }
    if (blocks == 1) return;
    __threadfence();
    __syncthreads();
    const long leader = mine - (long)split * KV_HEADS;
    if (thread == 0) last = atomicAdd(arrivals + leader, 1) == blocks - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (thread == 0) arrivals[leader] = 0;
    // Many loads at once: one after the other, they took as long as the rest of the kernel. They bypass the L1 cache.
    float2* all = (float2*)rings;
    for (int i = thread; i < blocks * SHARE; i += THREADS)
        all[i] = __ldcg(stats + (leader + i / SHARE * KV_HEADS) * SHARE + i % SHARE);
    __syncthreads();
    for (int i = thread; i < SHARE * VECTORS; i += THREADS) {
        const int h = i / VECTORS;
        float maximum = MASKED, total = 0.0f;
        float4 acc{};
        for (int j = 0; j < blocks; j++) maximum = fmaxf(maximum, all[j * SHARE + h].x);
#pragma unroll 8
        for (int j = 0; j < blocks; j++) {
            const float4 part = __ldcg(parts + (leader + j * KV_HEADS) * SHARE * VECTORS + i);
            const float2 stat = all[j * SHARE + h];
            const float shrink = exp2f(stat.x - maximum);
            total = fmaf(stat.y, shrink, total);
            add(acc, part, shrink);
        }
        store(i, acc, total);
    }
}
