// Products of Hopper's tensor cores: four warps multiply 64 rows, which are in their registers or in shared memory, with 8 to 64
// columns, which are in shared memory. They are issued in groups and run while the warps go on; `sum`, the registers and the
// shared memory must not change meanwhile.

// A matrix in shared memory: rows of eight numbers (16 bytes), of which eight lie after each other; `next_eight` bytes further are
// the next eight rows, and `next_numbers` bytes further the same rows' next eight numbers.
__device__ __forceinline__ unsigned long descriptor(const void* at, int next_numbers, int next_eight) {
    return (unsigned long)(shared_place(at) & 0x3FFFF) >> 4 | (unsigned long)(next_numbers >> 4) << 16 | (unsigned long)(next_eight >> 4) << 32;
}

// The same of rows of 64 numbers (128 bytes), from `at` on, in which eights of numbers are exchanged: the one that is number i of
// row r lies at i ^ r % 8. The first row of all is at a multiple of 1,024 bytes.
__device__ __forceinline__ unsigned long swizzled(const void* at) { return descriptor(at, 16, 1024) | 1ul << 62; }

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;"); }

// After a thread has written to shared memory, and before a barrier after which the tensor cores read it.
__device__ __forceinline__ void fence_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int GROUPS> __device__ __forceinline__ void wait_for_products() {  // until at most so many groups run
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

// Keep the compiler from using these registers for something else before this point.
template <int COUNT> __device__ __forceinline__ void keep_words(u32* words) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(words[i]));
}
template <typename ARRAY> __device__ __forceinline__ void keep(ARRAY& a) { keep_words<sizeof(ARRAY) / 4>((u32*)&a); }

// sum += a times the matrix of `b`. A lane has a[0] and a[2] of row lane / 4 and columns 2 (lane % 4) and 8 more, a[1] and a[3] of
// eight rows further; sum[n] of the same rows, and of columns 8 n + 2 (lane % 4) and the next.
#define SUMS(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#if N_TILES == 1
#define SUM_NAMES "{%0, %1, %2, %3}"
#define ALL_SUMS SUMS(0)
#define COLUMN_COUNT "8"
#define REGISTERS "{%4, %5, %6, %7}, %8"
#define MATRICES "%4, %5"
#elif N_TILES == 2
#define SUM_NAMES "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define ALL_SUMS SUMS(0), SUMS(1)
#define COLUMN_COUNT "16"
#define REGISTERS "{%8, %9, %10, %11}, %12"
#define MATRICES "%8, %9"
#elif N_TILES == 4
#define SUM_NAMES "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define ALL_SUMS SUMS(0), SUMS(1), SUMS(2), SUMS(3)
#define COLUMN_COUNT "32"
#define REGISTERS "{%16, %17, %18, %19}, %20"
#define MATRICES "%16, %17"
#elif N_TILES == 8
#define SUM_NAMES "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15," \
    " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define ALL_SUMS SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
#define COLUMN_COUNT "64"
#define REGISTERS "{%32, %33, %34, %35}, %36"
#define MATRICES "%32, %33"
#endif
#define MULTIPLY(factors, flags)                                                                               \
    "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" COLUMN_COUNT "k16.f32." MMA_TYPE "." MMA_TYPE " " \
    SUM_NAMES ", " factors ", p, 1, 1, " flags ";}"

__device__ __forceinline__ void multiply_tile(float (&sum)[N_TILES][4], const u32 (&a)[4], unsigned long b) {
    asm volatile(MULTIPLY(REGISTERS, "0") : ALL_SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void multiply_tile(float (&sum)[N_TILES][4], unsigned long a, unsigned long b) {
    asm volatile(MULTIPLY(MATRICES, "0, 0") : ALL_SUMS : "l"(a), "l"(b));
}
