// Copies from global to shared memory that run while the thread goes on, in groups.

__device__ __forceinline__ u32 shared_place(const void* at) { return (u32)__cvta_generic_to_shared(at); }

template <int BYTES = 16> __device__ __forceinline__ void copy_async(u32 to, const void* from, bool valid) {  // zeros where not valid
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
                     : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int GROUPS> __device__ __forceinline__ void wait_for_copies() {  // until at most so many groups are under way
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

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
