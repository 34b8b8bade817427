// The columns of x that belong to a chunk of a weight, and their dot product with it. For gemv.cu.
//
// Integer weights are multiplied as integers (dp4a), because converting them would take longer than reading them. The columns
// of x in a chunk become two 8-bit digits each, with a scale that maps the largest to 127 * 256: x has 16 bits, more than bf16
// except for values much smaller than the largest of the chunk.

#define INTEGERS (FORMAT == INT8 || FORMAT == INT4)
#define LARGEST 32512.0f  // 127 * 256

// The columns of x, or of the norm's weight, that belong to a chunk.
__device__ __forceinline__ void load_columns(const void* at, int chunk, float (&values)[WIDTH]) {
#if WIDTH < 8
#pragma unroll
    for (int i = 0; i < WIDTH; i++) values[i] = load_as_float<X_TYPE>(at, (long)chunk * WIDTH + i);
#else
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++)
        load_eight<X_TYPE>(at, (long)chunk * (WIDTH / 8) + i, *(float(*)[8])(values + 8 * i));
#endif
}

#if INTEGERS
struct Columns {  // of x that belong to a chunk, times the norm's weight
    u32 high[WIDTH / 4], low[WIDTH / 4];  // digits of four columns each, in the order of the weights' bytes
    float scale, sum;
};

// Two 8-bit digits of each of a chunk's columns. A sum with 1.5 * 2^23 has an integer in its lowest bits, which is faster than
// a conversion; 128 more make the lower digit unsigned.
__device__ __forceinline__ void prepare(Columns& columns, const float (&values)[WIDTH]) {
    float largest = 0.0f;
    columns.sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest) : "f"(fabsf(values[i])));
        columns.sum += values[i];
    }
    const float stretch = largest > 1e-33f ? LARGEST / largest : 0.0f;  // the scale keeps a NaN
    columns.scale = largest / (FORMAT == INT4 && !MINIMUMS ? 16 * LARGEST : LARGEST);
    auto gather = [&](int a, int b, int c, int d, u32& high, u32& low) {
        u32 number[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float value = values[i == 0 ? a : i == 1 ? b : i == 2 ? c : d];
            number[i] = __float_as_uint(fmaf(value, stretch, 12582912.0f + 128.0f));
        }
        const u32 first = __byte_perm(number[0], number[1], 0x5140), second = __byte_perm(number[2], number[3], 0x5140);
        high = __byte_perm(first, second, 0x7632);
        low = __byte_perm(first, second, 0x5410) ^ 0x80808080u;
    };
#pragma unroll
    for (int i = 0; i < WIDTH; i += 8) {
        const int word = i / 4;
        if (FORMAT == INT4) {  // nibbles 0, 2, 4, 6 of a word are its weights 0, 4, 1, 5
            gather(i, i + 4, i + 1, i + 5, columns.high[word], columns.low[word]);
            gather(i + 2, i + 6, i + 3, i + 7, columns.high[word + 1], columns.low[word + 1]);
        } else {
            gather(i, i + 1, i + 2, i + 3, columns.high[word], columns.low[word]);
            gather(i + 4, i + 5, i + 6, i + 7, columns.high[word + 1], columns.low[word + 1]);
        }
    }
}

__device__ __forceinline__ void multiply_bytes(int& sum, u32 weights, u32 digits) {
#if MINIMUMS
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(digits));
#else
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(weights), "r"(digits));
#endif
}

// The dot product of one chunk with x, without the weights' scale. INT4: of the signed weights times 16, or of the unsigned
// ones if there are minimums.
__device__ __forceinline__ float dot(const Chunk& c, const Columns& x) {
    int high = 0, low = 0;
#pragma unroll
    for (int i = 0; i < WIDTH / 4; i++) {
#if FORMAT == INT8
        const u32 bytes = c.w[i];
#elif MINIMUMS
        const u32 bytes = c.w[i / 2] >> i % 2 * 4 & 0x0F0F0F0Fu;
#else
        const u32 bytes = ((i % 2 ? c.w[i / 2] : c.w[i / 2] << 4) & 0xF0F0F0F0u) ^ 0x80808080u;
#endif
        multiply_bytes(high, bytes, x.high[i]);
        multiply_bytes(low, bytes, x.low[i]);
    }
    return (float)(high * 256 + low) * x.scale;
}
#else
struct Columns {
    float values[WIDTH];
};

__device__ __forceinline__ void prepare(Columns& columns, const float (&values)[WIDTH]) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) columns.values[i] = values[i];
}

__device__ __forceinline__ float dot(const Chunk& c, const Columns& columns, float sum = 0.0f) {
    const float(&x)[WIDTH] = columns.values;
#pragma unroll
    for (int word = 0; word < 4; word++) {
        u32 w = c.w[word];
#if FORMAT == F32
        sum = fmaf(from_bits(w), x[word], sum);
#elif FORMAT == BF16
        sum = fmaf(from_bits(w << 16), x[2 * word], sum);
        sum = fmaf(from_bits(w & 0xFFFF0000u), x[2 * word + 1], sum);
#elif FORMAT == F16
        sum = fmaf(half_to_float((u16)w), x[2 * word], sum);
        sum = fmaf(half_to_float((u16)(w >> 16)), x[2 * word + 1], sum);
#elif FORMAT == FP8
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 pair;
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)(w >> 16 * i)));
            sum = fmaf(half_to_float((u16)pair), x[4 * word + 2 * i], sum);
            sum = fmaf(half_to_float((u16)(pair >> 16)), x[4 * word + 2 * i + 1], sum);
        }
#endif
    }
    return sum;
}
#endif
