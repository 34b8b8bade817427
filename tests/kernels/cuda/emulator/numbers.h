// The kernels' number types, and how each is read and rounded.

#pragma once
#include <cmath>
#include <limits>

#include "program.h"

template <typename TO, typename FROM> TO bits_as(FROM from) {
    static_assert(sizeof(TO) == sizeof(FROM));
    TO to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// A float with numbers below the normal ones as zero.
inline float flushed(float value) {
    return std::fabs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

struct Bf16 {
    static constexpr int MANTISSA = 7, LEAST = -126;
    static constexpr u16 INFINITE = 0x7F80;
};
struct F16 {
    static constexpr int MANTISSA = 10, LEAST = -14;
    static constexpr u16 INFINITE = 0x7C00;
};

template <typename TYPE> double widened(u16 bits) {
    const int exponent = (bits & 0x7FFF) >> TYPE::MANTISSA, mantissa = bits & ((1 << TYPE::MANTISSA) - 1);
    double value;
    if ((bits & TYPE::INFINITE) == TYPE::INFINITE)
        value = mantissa ? NAN : INFINITY;
    else if (exponent)
        value = bits_as<double>((u64)(exponent - 1 + TYPE::LEAST + 1023) << 52 | (u64)mantissa << (52 - TYPE::MANTISSA));
    else
        value = std::ldexp(mantissa, TYPE::LEAST - TYPE::MANTISSA);
    return bits & 0x8000 ? -value : value;
}

// To the nearest, ties to even.
template <typename TYPE> u16 narrowed(double value) {
    if (std::isnan(value)) return 0x7FFF;
    const u16 sign = std::signbit(value) ? 0x8000 : 0;
    value = std::fabs(value);
    if (value < std::ldexp(1.0, TYPE::LEAST)) return sign | (u16)std::nearbyint(std::ldexp(value, TYPE::MANTISSA - TYPE::LEAST));
    u64 bits = bits_as<u64>(value);
    const int cut = 52 - TYPE::MANTISSA;
    bits += (1ull << (cut - 1)) - 1 + (bits >> cut & 1);
    const s64 exponent = (s64)(bits >> 52) - 1023 - TYPE::LEAST + 1;
    if (exponent >= TYPE::INFINITE >> TYPE::MANTISSA) return sign | TYPE::INFINITE;
    return sign | (u16)(exponent << TYPE::MANTISSA) | (u16)(bits >> cut & ((1 << TYPE::MANTISSA) - 1));
}

inline double widened_e4m3(u8 bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    double value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    if ((bits & 0x7F) == 0x7F) value = NAN;
    return bits & 0x80 ? -value : value;
}
