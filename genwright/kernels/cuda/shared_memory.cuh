// Addresses and loads of shared memory.

__device__ __forceinline__ u32 shared_place(const void* at) { return (u32)__cvta_generic_to_shared(at); }

__device__ __forceinline__ Chunk load_shared(u32 at) {
    Chunk c;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(c.w[0]), "=r"(c.w[1]), "=r"(c.w[2]), "=r"(c.w[3]) : "r"(at));
    return c;
}

template <int TYPE> __device__ __forceinline__ float load_shared_as_float(u32 at) {
    u32 bits;
    u16 half;
    if (TYPE == F32)
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(at));
    else
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(at));
    return from_stored<TYPE>(TYPE == F32 ? bits : half);
}
