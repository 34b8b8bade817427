// Sums that one block leaves in memory for another. A sum says itself that it has arrived: memory holds NOTHING before, and the
// block that takes it puts NOTHING back for the next launch. (A counter of arrivals would need fences, which cost more than they
// order: with them the bf16 products of a layer and eight tokens took 132 instead of 110 us. For the sums
// of 64 tokens a flag is cheaper: packed_wgmma_outputs.cuh.)

#define NOTHING 0xFFFFFFFFu  // a NaN that no sum is

struct alignas(16) Four {
    u32 bits[4];
};

__device__ __forceinline__ Four peek(const Four* at) {
    Four found;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.bits[0]), "=r"(found.bits[1]), "=r"(found.bits[2]), "=r"(found.bits[3])
                 : "l"(at));
    return found;
}

__device__ __forceinline__ void put(Four* at, const Four& value) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.bits[0]), "r"(value.bits[1]),
                 "r"(value.bits[2]), "r"(value.bits[3])
                 : "memory");
}

__device__ __forceinline__ void leave(Four* at, Four sums) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums.bits[i] = sums.bits[i] == NOTHING ? NOTHING >> 1 : sums.bits[i];  // another NaN
    put(at, sums);
}

// Add the sums at `at` to `to`, as soon as they have arrived. `found` is what was there at first.
__device__ __forceinline__ void take(float (&to)[4], Four* at, Four found) {
    while (found.bits[0] == NOTHING || found.bits[1] == NOTHING || found.bits[2] == NOTHING || found.bits[3] == NOTHING)
        found = peek(at);
    put(at, Four{NOTHING, NOTHING, NOTHING, NOTHING});
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] += from_bits(found.bits[i]);
}
