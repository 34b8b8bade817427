// The angles of RoPE at one position. For the decode attention kernels, whose lanes rotate channels lane, lane + 32, ... of the
// first half of a head with those of the second half.

#define PAIRS ((HEAD_DIM / 2 + 31) / 32)  // of channels, per lane

struct Angles {
    float cosine[PAIRS], sine[PAIRS];
};

__device__ __forceinline__ Angles load_angles(const float* cos, const float* sin, const long* position, int lane) {
    Angles angles{};
#pragma unroll
    for (int i = 0; i < PAIRS && ROPE; i++) {
        const int d = lane + 32 * i;
        if (d >= HEAD_DIM / 2) continue;
        angles.cosine[i] = cos[*position * (HEAD_DIM / 2) + d];
        angles.sine[i] = sin[*position * (HEAD_DIM / 2) + d];
    }
    return angles;
}

__device__ __forceinline__ void rotate(const Angles& angles, int i, float& first, float& second) {
    const float before = first;
    first = first * angles.cosine[i] - second * angles.sine[i];
    second = second * angles.cosine[i] + before * angles.sine[i];
}
