// Arithmetic and comparisons.

#include "actions.h"

namespace {

template <typename T> using Long = std::conditional_t<std::is_signed_v<T>, s64, std::conditional_t<sizeof(T) == 2, u32, u64>>;

template <typename T> bool below(T a, T b) { return a < b; }
bool below(float a, float b) { return a < b || (a == b && std::signbit(a) > std::signbit(b)); }

#define THREE T, T, T
OPERATION(Add, T, BOTH, (T a, T b), (T)(a + b))
OPERATION(Sub, T, BOTH, (T a, T b), (T)(a - b))
OPERATION(Multiply, T, BOTH, (T a, T b), (T)(a * b))
OPERATION(Minimum, T, BOTH, (T a, T b), below(b, a) || a != a ? b : a)
OPERATION(Maximum, T, BOTH, (T a, T b), below(a, b) || a != a ? b : a)
OPERATION(Negate, T, T, (T a), (T)-a)
OPERATION(Divide, T, BOTH, (T a, T b), b == 0 ? (T)-1 : (T)((Long<T>)a / b))
OPERATION(MultiplyAdd, T, THREE, (T a, T b, T c), (T)(a * b + c))
OPERATION(FusedMultiplyAdd, T, THREE, (T a, T b, T c), std::fma(a, b, c))
OPERATION(MultiplyHigh, T, BOTH, (T a, T b), (T)((Long<T>)a * b >> 32))
OPERATION(Wide, Long<T>, BOTH, (T a, T b), (Long<T>)a * b)
OPERATION(Equal, u32, BOTH, (T a, T b), a == b)
OPERATION(NotEqual, u32, BOTH, (T a, T b), a != b && a == a && b == b)
OPERATION(Less, u32, BOTH, (T a, T b), a < b)
OPERATION(LessEqual, u32, BOTH, (T a, T b), a <= b)
OPERATION(Greater, u32, BOTH, (T a, T b), a > b)
OPERATION(GreaterEqual, u32, BOTH, (T a, T b), a >= b)
OPERATION(NotLess, u32, BOTH, (T a, T b), !(a < b))           // also of a NaN
OPERATION(NotLessEqual, u32, BOTH, (T a, T b), !(a <= b))
OPERATION(NotGreater, u32, BOTH, (T a, T b), !(a > b))
OPERATION(NotGreaterEqual, u32, BOTH, (T a, T b), !(a >= b))
OPERATION(Different, u32, BOTH, (T a, T b), !(a == b))
OPERATION(NotDifferent, u32, BOTH, (T a, T b), !(a < b || a > b))

template <float (*F)(float)> void unary(Warp& warp, I i, u32 lanes) {
    each<float, float>(warp, i, lanes, [](float a) { return F(a); });
}
float power_of_two(float a) { return std::exp2(a); }
float inverse_root(float a) { return 1.0f / std::sqrt(a); }
float magnitude(float a) { return std::fabs(a); }
float negated(float a) { return -a; }

void divide_approximately(Warp& warp, I i, u32 lanes) {
    each<float, float, float>(warp, i, lanes, [](float a, float b) { return a * flushed(1.0f / b); });
}

void maximum_or_nan(Warp& warp, I i, u32 lanes) {
    each<float, float, float>(warp, i, lanes, [](float a, float b) {
        return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    });
}

template <typename TYPE, typename F> void halves(Warp& warp, I i, u32 lanes, int sources, F f) {
    const Lanes to = warp.lanes(i.operands[0]);
    for_lanes(lanes, [&](int lane) {
        u32 result = 0;
        for (int half = 0; half < 2; half++) {
            double values[3] = {};
            for (int k = 0; k < sources; k++)
                values[k] = widened<TYPE>((u16)(warp.lanes(i.operands[1 + k]).template get<u32>(lane) >> 16 * half));
            result |= (u32)narrowed<TYPE>(f(values)) << 16 * half;
        }
        to.set<u32>(lane, result);
    });
}
template <typename TYPE> void add_halves(Warp& warp, I i, u32 lanes) {
    halves<TYPE>(warp, i, lanes, 2, [](const double* v) { return v[0] + v[1]; });
}
template <typename TYPE> void multiply_halves(Warp& warp, I i, u32 lanes) {
    halves<TYPE>(warp, i, lanes, 2, [](const double* v) { return v[0] * v[1]; });
}
// The exact sum with an odd last bit if it has been rounded, so that the next rounding is that of the exact sum.
double rounded_to_odd(double a, double b) {
    const double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
    if (std::isnan(error) || error == 0 || bits_as<u64>(sum) & 1) return sum;
    return std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}
template <typename TYPE> void multiply_add_halves(Warp& warp, I i, u32 lanes) {
    halves<TYPE>(warp, i, lanes, 3, [](const double* v) { return rounded_to_odd(v[0] * v[1], v[2]); });
}

template <typename A> void dot_of_bytes(Warp& warp, I i, u32 lanes) {
    each<s32, u32, u32, s32>(warp, i, lanes, [](u32 a, u32 b, s32 c) {
        for (int k = 0; k < 4; k++) c += (A)(a >> 8 * k) * (int8_t)(b >> 8 * k);
        return c;
    });
}

}  // namespace

#define ORDER(NAME, OP) SIGNED("setp." NAME, OP), UNSIGNED("setp." NAME, OP)
#define FLOATS(NAME, OP) {"setp." NAME ".ftz.f32", OP<float>::run}

const Actions numbers = {
    SIGNED("add", Add), {"add.ftz.f32", Add<float>::run}, {"add.rn.f16x2", add_halves<F16>}, {"add.rn.bf16x2", add_halves<Bf16>},
    SIGNED("sub", Sub), {"sub.ftz.f32", Sub<float>::run},
    SIGNED("mul.lo", Multiply), {"mul.hi.s32", MultiplyHigh<s32>::run}, {"mul.hi.u32", MultiplyHigh<u32>::run},
    {"mul.wide.s32", Wide<s32>::run}, {"mul.wide.u32", Wide<u32>::run}, {"mul.wide.u16", Wide<u16>::run}, {"mul.ftz.f32", Multiply<float>::run},
    {"mul.rn.f16x2", multiply_halves<F16>}, {"mul.rn.bf16x2", multiply_halves<Bf16>},
    SIGNED("mad.lo", MultiplyAdd), {"fma.rn.ftz.f32", FusedMultiplyAdd<float>::run},
    {"fma.rn.f16x2", multiply_add_halves<F16>}, {"fma.rn.bf16x2", multiply_add_halves<Bf16>},
    {"div.s32", Divide<s32>::run}, {"div.u32", Divide<u32>::run}, {"div.approx.ftz.f32", divide_approximately},
    SIGNED("max", Maximum), UNSIGNED("max", Maximum), {"max.ftz.f32", Maximum<float>::run}, {"max.NaN.f32", maximum_or_nan},
    SIGNED("min", Minimum), UNSIGNED("min", Minimum), {"min.ftz.f32", Minimum<float>::run},
    SIGNED("neg", Negate), {"neg.ftz.f32", unary<negated>}, {"abs.ftz.f32", unary<magnitude>},
    {"ex2.approx.ftz.f32", unary<power_of_two>}, {"rsqrt.approx.ftz.f32", unary<inverse_root>},
    {"dp4a.u32.s32", dot_of_bytes<u8>}, {"dp4a.s32.s32", dot_of_bytes<int8_t>},
    ORDER("lt", Less), ORDER("le", LessEqual), ORDER("gt", Greater), ORDER("ge", GreaterEqual),
    ORDER("eq", Equal), ORDER("ne", NotEqual), PLAIN_BITS("setp.eq", Equal), PLAIN_BITS("setp.ne", NotEqual),
    {"setp.eq.s16", Equal<int16_t>::run}, {"setp.ne.s16", NotEqual<int16_t>::run},
    FLOATS("lt", Less), FLOATS("le", LessEqual), FLOATS("gt", Greater), FLOATS("ge", GreaterEqual), FLOATS("eq", Equal),
    FLOATS("ne", NotEqual), FLOATS("ltu", NotGreaterEqual), FLOATS("leu", NotGreater), FLOATS("gtu", NotLessEqual),
    FLOATS("geu", NotLess), FLOATS("equ", NotDifferent), FLOATS("neu", Different),
};
