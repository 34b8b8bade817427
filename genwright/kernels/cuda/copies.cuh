// Copies from global to shared memory that run while the thread goes on, in groups.

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
