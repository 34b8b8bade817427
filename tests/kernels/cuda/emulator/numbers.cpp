// Arithmetic and comparisons.

#include "actions.h"

namespace {

template <typename T> using Long = std::conditional_t<std::is_signed_v<T>, s64, u64>;

#define THREE T, T, T
#define CHOICE T, T, u32
OPERATION(Add, T, BOTH, (T a, T b), (T)(a + b))
OPERATION(Sub, T, BOTH, (T a, T b), (T)(a - b))
OPERATION(Multiply, T, BOTH, (T a, T b), (T)(a * b))
OPERATION(Minimum, T, BOTH, (T a, T b), b < a || a != a ? b : a)
OPERATION(Maximum, T, BOTH, (T a, T b), b > a || a != a ? b : a)
OPERATION(Negate, T, T, (T a), (T)-a)
OPERATION(Divide, T, BOTH, (T a, T b), b == 0 ? (T)-1 : (T)(a / b))
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
OPERATION(Select, T, CHOICE, (T a, T b, u32 p), p ? a : b)

Action comparison(const std::string& name, const std::string& type) {
    static const std::map<std::string, Action (*)(const std::string&)> known = {
        {"eq", number<Equal>},       {"ne", number<NotEqual>},      {"lt", number<Less>},        {"le", number<LessEqual>},
        {"gt", number<Greater>},     {"ge", number<GreaterEqual>},  {"lo", number<Less>},        {"ls", number<LessEqual>},
        {"hi", number<Greater>},     {"hs", number<GreaterEqual>},  {"equ", number<Equal>},      {"neu", number<Different>},
        {"ltu", number<NotGreaterEqual>}, {"leu", number<NotGreater>}, {"gtu", number<NotLessEqual>}, {"geu", number<NotLess>}};
    const auto found = known.find(name);
    return found == known.end() ? nullptr : found->second(type);
}

// Arithmetic of single types.

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

template <bool LARGEST> void extreme_or_nan(Warp& warp, I i, u32 lanes) {
    each<float, float, float>(warp, i, lanes, [](float a, float b) {
        return std::isnan(a) || std::isnan(b) ? NAN : LARGEST ? std::max(a, b) : std::min(a, b);
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
template <typename TYPE> void multiply_add_halves(Warp& warp, I i, u32 lanes) {
    halves<TYPE>(warp, i, lanes, 3, [](const double* v) { return v[0] * v[1] + v[2]; });
}

template <typename A> void dot_of_bytes(Warp& warp, I i, u32 lanes) {
    each<s32, u32, u32, s32>(warp, i, lanes, [](u32 a, u32 b, s32 c) {
        for (int k = 0; k < 4; k++) c += (A)(a >> 8 * k) * (int8_t)(b >> 8 * k);
        return c;
    });
}

}  // namespace

Action of_numbers(Instruction&, const std::vector<std::string>& words) {
    const std::string &name = words[0], &type = words.back(), &before = words[words.size() - 2];
    const bool halves = type == "f16x2" || type == "bf16x2", bf16 = type == "bf16x2";
    if (name == "add") return halves ? (bf16 ? add_halves<Bf16> : add_halves<F16>) : number<Add>(type);
    if (name == "sub") return number<Sub>(type);
    if (name == "mul" && before == "wide") return type == "s32" ? Wide<s32>::run : Wide<u32>::run;
    if (name == "mul" && before == "hi") return type == "s32" ? MultiplyHigh<s32>::run : MultiplyHigh<u32>::run;
    if (name == "mul") return halves ? (bf16 ? multiply_halves<Bf16> : multiply_halves<F16>) : number<Multiply>(type);
    if (name == "mad" && before == "lo") return integer<MultiplyAdd>(type);
    if (name == "fma" && halves) return bf16 ? multiply_add_halves<Bf16> : multiply_add_halves<F16>;
    if (name == "fma" && type == "f32") return FusedMultiplyAdd<float>::run;
    if (name == "div" && type == "f32") return before == "ftz" ? divide_approximately : nullptr;
    if (name == "div") return integer<Divide>(type);
    if ((name == "max" || name == "min") && words[1] == "NaN") return name == "max" ? extreme_or_nan<true> : extreme_or_nan<false>;
    if (name == "max") return number<Maximum>(type);
    if (name == "min") return number<Minimum>(type);
    if (name == "abs" && type == "f32") return unary<magnitude>;
    if (name == "neg") return type == "f32" ? unary<negated> : integer<Negate>(type);
    if (name == "ex2") return unary<power_of_two>;
    if (name == "rsqrt") return unary<inverse_root>;
    if (name == "setp" && words.size() < 5) return comparison(words[1], type);
    if (name == "selp") return integer<Select>(type == "f32" ? "b32" : type);
    if (name == "dp4a" && type == "s32") return words[1] == "u32" ? dot_of_bytes<u8> : dot_of_bytes<int8_t>;
    return nullptr;
}

