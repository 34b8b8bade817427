// Shared by the kernels: number types, 16-byte chunks of a weight, and the tiles of the product kernels.

#define F32 0
#define F16 1
#define BF16 2
#define INT8 3
#define INT4 4
#define FP8 5
#define PLANES 6

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#ifdef FORMAT
#if FORMAT == F32
#define WIDTH 4
#elif FORMAT == F16 || FORMAT == BF16
#define WIDTH 8
#elif FORMAT == INT8 || FORMAT == FP8
#define WIDTH 16
#else
#define WIDTH 32
#endif
#endif

#define WARPS (THREADS / 32)
#define X_BYTES (X_TYPE == F32 ? 4 : 2)
#define SCALES ((COLUMNS + (GROUP ? GROUP : 1) - 1) / (GROUP ? GROUP : 1))  // per row
// Of the product kernels (gemv, mma), which compute tiles of ROWS rows; with GATE, half of them are the gate's.
#define STEP (GATE ? ROWS / 2 : ROWS)  // outputs per tile
#define TILES ((OUTPUTS + STEP - 1) / STEP)
#define ROW_CHUNKS (COLUMNS / WIDTH)
// Of the tensor-core kernels: a slice is four chunks, one for each lane of a quad.
#define SLICES ((ROW_CHUNKS + 3) / 4)
#define WARP_SLICES ((SLICES + WARPS * DEPTH - 1) / (WARPS * DEPTH) * DEPTH)  // slices per warp
#define PIECES (WIDTH / 8)  // per chunk, eight columns each

struct alignas(16) Chunk {
    u32 w[4];
};

__device__ __forceinline__ float from_bits(u32 bits) { return __int_as_float(bits); }

__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

template <int TYPE> __device__ __forceinline__ float load_as_float(const void* at, long index) {
    if (TYPE == F32) return ((const float*)at)[index];
    u16 bits = ((const u16*)at)[index];
    return TYPE == F16 ? half_to_float(bits) : from_bits((u32)bits << 16);
}

// Load the bits now and convert them later: converting right after the load would wait for it.
template <int TYPE> __device__ __forceinline__ u32 load_bits(const void* at, long index) {
    return TYPE == F32 ? ((const u32*)at)[index] : ((const u16*)at)[index];
}

template <int TYPE> __device__ __forceinline__ float from_stored(u32 bits) {
    return TYPE == F32 ? from_bits(bits) : TYPE == F16 ? half_to_float((u16)bits) : from_bits(bits << 16);
}

template <int TYPE> __device__ __forceinline__ void store_float(void* at, long index, float value) {
    if (TYPE == F32) {
        ((float*)at)[index] = value;
        return;
    }
    u16 bits;
    if (TYPE == F16)
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    ((u16*)at)[index] = bits;
}

template <int TYPE> __device__ __forceinline__ float rounded(float value) {
    if (TYPE == F32) return value;
    u16 bits;
    store_float<TYPE>(&bits, 0, value);
    return load_as_float<TYPE>(&bits, 0);
}

// A scale, converted to fp16 and repeated in both halves of a register.
template <int TYPE> __device__ __forceinline__ u32 load_pair(const void* at, long index) {
    u16 bits;
    if (TYPE == F16)
        bits = ((const u16*)at)[index];
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(load_as_float<TYPE>(at, index)));
    return bits | (u32)bits << 16;
}

// Eight consecutive values as they are stored: a kernel may load many before it converts the first.
template <int TYPE> struct Eight { uint4 vectors[TYPE == F32 ? 2 : 1]; };

template <int TYPE> __device__ __forceinline__ Eight<TYPE> load_stored(const void* at, long index) {
    return ((const Eight<TYPE>*)at)[index];
}

template <int TYPE> __device__ __forceinline__ void to_floats(const Eight<TYPE>& stored, float (&values)[8]) {
    constexpr int VECTORS = TYPE == F32 ? 2 : 1, PER_WORD = 2 / VECTORS;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const u32 words[4] = {stored.vectors[i].x, stored.vectors[i].y, stored.vectors[i].z, stored.vectors[i].w};
#pragma unroll
        for (int j = 0; j < 4 * PER_WORD; j++) {
            const u32 word = words[j / PER_WORD];
            const bool odd = j % PER_WORD;
            values[4 * PER_WORD * i + j] = TYPE == F32    ? from_bits(word)
                                           : TYPE == BF16 ? from_bits(odd ? word & 0xFFFF0000u : word << 16)
                                                          : half_to_float((u16)(odd ? word >> 16 : word));
        }
    }
}

template <int TYPE> __device__ __forceinline__ void load_eight(const void* at, long index, float (&values)[8]) {
    to_floats<TYPE>(load_stored<TYPE>(at, index), values);
}

// Programmatic dependent launch: let the next kernel start.
__device__ __forceinline__ void start_next() {
#if PDL
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Wait for the previous kernel to finish. A kernel may start several kernels early, so what it reads before it waits must not
// have been written by a kernel of the same forward pass; what it writes before it waits may still be read.
__device__ __forceinline__ void wait_for_previous() {
#if PDL
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void join_stream() {
    start_next();
    wait_for_previous();
}

#ifdef OUTPUTS
// The matrix row of row r of a tile: with GATE, rows from STEP on belong to the up-projection. Rows past the end repeat the
// last one.
__device__ __forceinline__ int matrix_row(int tile, int r) {
    int row = tile * STEP + (GATE ? r % STEP : r);
    if (OUTPUTS % STEP) row = row < OUTPUTS ? row : OUTPUTS - 1;
    return GATE && r >= STEP ? row + OUTPUTS : row;
}

// With SHARE, point x and y to this block's token, and return the first row of its expert's matrix.
__device__ __forceinline__ int select_expert(const void*& x, void*& y, const long* experts) {
    if (!SHARE) return 0;
    join_stream();  // the previous kernel may have written `experts`
    x = (const char*)x + (long)(blockIdx.y / max(SHARE, 1)) * COLUMNS * X_BYTES;
    y = (char*)y + (long)blockIdx.y * OUTPUTS * X_BYTES;
    return experts[blockIdx.y] * OUTPUTS * (GATE ? 2 : 1);
}
#endif

// Weights are read once, so they must not evict x from the L1 cache. The load is predicated, not branched around, because
// after a branch the compiler schedules the arithmetic before the load.
__device__ __forceinline__ void load_chunk(Chunk& c, const Chunk* at, bool valid) {
    asm volatile(
        "{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
        : "+r"(c.w[0]), "+r"(c.w[1]), "+r"(c.w[2]), "+r"(c.w[3])
        : "l"(at), "r"((u32)valid));
}
