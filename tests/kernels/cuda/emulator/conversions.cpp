// Moves, and conversions between types.

#include "actions.h"

namespace {

OPERATION(Copied, T, T, (T a), a)

void move_pred(Warp& warp, I i, u32 lanes) {
    each<u32, u32>(warp, i, lanes, [](u32 a) { return (u32)(a != 0); });
}

void divide_word(Warp& warp, I i, u32 lanes) {  // mov.b32 {a, b}, c
    for_lanes(lanes, [&](int lane) {
        const u32 both = warp.lanes(i.operands[2]).get<u32>(lane);
        warp.lanes(i.operands[0]).set<u16>(lane, both), warp.lanes(i.operands[1]).set<u16>(lane, both >> 16);
    });
}
void join_words(Warp& warp, I i, u32 lanes) {  // mov.b32 c, {a, b}
    each<u32, u16, u16>(warp, i, lanes, [](u16 low, u16 high) { return low | (u32)high << 16; });
}

template <typename D, typename S> void convert(Warp& warp, I i, u32 lanes) {
    each<D, S>(warp, i, lanes, [](S a) { return (D)a; });
}
void round_to_integer(Warp& warp, I i, u32 lanes) {
    each<s32, float>(warp, i, lanes, [](float a) {
        if (std::isnan(a)) return 0;
        return (s32)std::clamp(std::nearbyint((double)a), -2147483648.0, 2147483647.0);
    });
}
template <typename TYPE> void widen(Warp& warp, I i, u32 lanes) {
    each<float, u16>(warp, i, lanes, [](u16 a) { return (float)widened<TYPE>(a); });
}
template <typename TYPE> void narrow(Warp& warp, I i, u32 lanes) {
    each<u16, u32>(warp, i, lanes, [](u32 a) { return narrowed<TYPE>(bits_as<float>(a)); });
}
template <typename TYPE> void narrow_two(Warp& warp, I i, u32 lanes) {
    each<u32, u32, u32>(warp, i, lanes, [](u32 high, u32 low) {
        return (u32)narrowed<TYPE>(bits_as<float>(high)) << 16 | narrowed<TYPE>(bits_as<float>(low));
    });
}
void widen_e4m3(Warp& warp, I i, u32 lanes) {
    each<u32, u16>(warp, i, lanes, [](u16 a) {
        return (u32)narrowed<F16>(widened_e4m3(a >> 8)) << 16 | narrowed<F16>(widened_e4m3((u8)a));
    });
}

}  // namespace

// A move of two words into one or back; false if the instruction is another.
bool find_words(Instruction& i, const std::string& name) {
    if (name != "mov.b32" || i.operands.size() != 3) return false;
    i.action = i.text.find('{') < i.text.find(',') ? divide_word : join_words;
    return true;
}

const Actions conversions = {
    PLAIN_BITS("mov", Copied), UNSIGNED("mov", Copied), {"mov.u16", Copied<u16>::run}, {"mov.f32", Copied<u32>::run},
    {"mov.pred", move_pred}, {"cvta.to.global.u64", Copied<u64>::run},
    {"cvt.u16.u32", convert<u16, u32>}, {"cvt.u32.u16", convert<u32, u16>}, {"cvt.u32.u64", convert<u32, u64>},
    {"cvt.u64.u32", convert<u64, u32>}, {"cvt.s64.s32", convert<s64, s32>}, {"cvt.s32.s16", convert<s32, int16_t>},
    {"cvt.rn.f32.s32", convert<float, s32>}, {"cvt.rni.ftz.s32.f32", round_to_integer}, {"cvt.f32.f16", widen<F16>},
    {"cvt.rn.f16.f32", narrow<F16>}, {"cvt.rn.bf16.f32", narrow<Bf16>},
    {"cvt.rn.f16x2.f32", narrow_two<F16>}, {"cvt.rn.bf16x2.f32", narrow_two<Bf16>}, {"cvt.rn.f16x2.e4m3x2", widen_e4m3},
};
