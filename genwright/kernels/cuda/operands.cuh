// The operands of mma.m16n8k16, in fp16 or bf16 (macro OPERAND), from the weights of a chunk. For mma.cu, skinny.cu, packed_skinny.cu and packed_wgmma.cu.
//
// Integers become fp16 exactly: the bits of 1024 with q in the lowest mantissa bits are 1024 + q. In bf16 the bits of q alone,
// in the lowest eight bits, are q 2^-133, because normal numbers below 2^-125 are as far apart as subnormal ones. One fma
// then subtracts the zero and scales. Its result is the weight times 2^-19 (1 / UNIT), which keeps its factor in range.

#if OPERAND == BF16
#define MMA_TYPE "bf16"
#else
#define MMA_TYPE "f16"
#endif
#define BF16_INTEGERS (OPERAND == BF16 && (FORMAT == INT4 || FORMAT == INT8))
#define UNIT (BF16_INTEGERS ? 0x1p19f : 1.0f)

__device__ __forceinline__ u32 add2(u32 a, u32 b) {
    u32 c;
    asm("add.rn." MMA_TYPE "x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
    u32 c;
    asm("mul.rn." MMA_TYPE "x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
    return c;
}

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn." MMA_TYPE "x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

__device__ __forceinline__ u32 to_pair(float value) {
    u32 pair;
    asm("cvt.rn." MMA_TYPE "x2.f32 %0, %1, %1;" : "=r"(pair) : "f"(value));
    return pair;
}

// (a & mask) | bits in one instruction; left to itself, the compiler takes two.
__device__ __forceinline__ u32 insert(u32 a, u32 mask, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
    return d;
}

__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct Factors {  // of a chunk's weights, each repeated in both halves of a register
    u32 scale, minimum;             // minimum + 8 scale, over UNIT
    u32 of_bits, of_16_bits, zero;  // bf16: of q and 16 q in the lowest bits, and what is added to the product
};

// With minimums w = q s + minimum = (q - 8) s + (minimum + 8 s), which loses fewer bits in 16-bit floats.
__device__ __forceinline__ Factors factors_of(float scale, float minimum) {
    Factors f;
    f.scale = to_pair(scale);
    f.minimum = to_pair(fmaf(8.0f, scale, minimum) / UNIT);
    const u32 pair = to_pair(MINIMUMS ? 1.0f : scale);
    f.of_bits = mul2(pair, 0x78807880u);                              // 2^133 / UNIT
    f.of_16_bits = mul2(pair, 0x76807680u);                           // 2^129 / UNIT
    f.zero = mul2(pair, FORMAT == INT8 ? 0xB980B980u : 0xB780B780u);  // -128 or -8, over UNIT
    return f;
}

// Piece j of a chunk as four pairs of neighbours. Not scaled; the int4 weights are q - 8 if SIGNED, else q.
template <bool SIGNED> __device__ __forceinline__ void unpack_piece(const Chunk& chunk, int j, u32 (&pairs)[4]) {
#if FORMAT == OPERAND
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = chunk.w[i];
#elif FORMAT == INT4
    const u32 low = chunk.w[j], high = low >> 8;
    const u32 minus = SIGNED ? 0xE408E408u : 0xE400E400u;       // -1032 or -1024
    const u32 minus_16th = SIGNED ? 0xD480D480u : 0xD400D400u;  // -72 or -64
    pairs[0] = add2(insert(low, 0x000F000Fu, 0x64006400u), minus);
    pairs[1] = fma2(insert(low, 0x00F000F0u, 0x64006400u), 0x2C002C00u, minus_16th);  // (1024 + 16 q) / 16 - 64
    pairs[2] = add2(insert(high, 0x000F000Fu, 0x64006400u), minus);
    pairs[3] = fma2(insert(high, 0x00F000F0u, 0x64006400u), 0x2C002C00u, minus_16th);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 word = chunk.w[2 * j + i / 2];
#if FORMAT == INT8
        const u32 biased = word ^ 0x80808080u;
        pairs[i] = add2(__byte_perm(biased, 0x64646464u, i % 2 ? 0x4342 : 0x4140), 0xE480E480u);  // 1024 + (q + 128) - 1152
#else
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pairs[i]) : "h"((u16)(i % 2 ? word >> 16 : word)));
#endif
    }
#endif
}

// The same, divided by UNIT; scaled if SCALED, else the scale must be 1 and there are no minimums.
template <bool SCALED> __device__ __forceinline__ void scale_piece(const Chunk& chunk, int j, const Factors& f, u32 (&pairs)[4]) {
#if BF16_INTEGERS
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool odd = i % 2;
#if FORMAT == INT8
        pairs[i] = fma2(__byte_perm(chunk.w[2 * j + i / 2] ^ 0x80808080u, 0, odd ? 0x4342 : 0x4140), f.of_bits, f.zero);
#else
        const u32 bits = chunk.w[j] >> i / 2 * 8 & (odd ? 0x00F000F0u : 0x000F000Fu);
        pairs[i] = fma2(bits, odd ? f.of_16_bits : f.of_bits, f.zero);
#endif
        if (MINIMUMS) pairs[i] = fma2(pairs[i], f.scale, f.minimum);
    }
#else
    unpack_piece<true>(chunk, j, pairs);
#pragma unroll
    for (int i = 0; i < 4 && SCALED; i++) pairs[i] = MINIMUMS ? fma2(pairs[i], f.scale, f.minimum) : mul2(pairs[i], f.scale);
#endif
}
