// Copies of boxes of a matrix to shared memory, by the copy engine (TMA). A map, which the host makes, says where the matrix is and
// how large a box is. In shared memory the sixteens of bytes i of row r are at i ^ r % 8. What is outside of the matrix becomes zeros.

struct alignas(64) TensorMap {
    unsigned long words[16];
};

// Let copies see barriers that this thread has initialized.
__device__ __forceinline__ void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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
