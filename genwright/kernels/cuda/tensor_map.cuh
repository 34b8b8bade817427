// Copies of boxes of a matrix to shared memory by TMA, Hopper's Tensor Memory Accelerator. A map, which the host makes, says where
// the matrix is and how large a box is. A row of a box becomes a line of 128 bytes of shared memory, which is swizzled: its
// sixteen bytes i are at i ^ (line's address / 128) % 8. What is outside of the matrix becomes zeros.

struct alignas(64) TensorMap {
    unsigned long words[16];
};

// Lets TMA see barriers that this thread has initialized.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, Barrier& copied, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     shared_place(to)),
                 "l"(&map), "r"(shared_place(&copied)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, Barrier& copied, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
            shared_place(to)),
        "l"(&map), "r"(shared_place(&copied)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
