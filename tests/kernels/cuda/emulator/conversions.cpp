// Moves, and conversions between types.

#include "actions.h"

namespace {

OPERATION(Copied, T, T, (T a), a)

void move_pred(Warp& warp, I i, u32 lanes) {
    each<u32, u32>(warp, i, lanes, [](u32 a) { return (u32)(a != 0); });
}

void move_between_sizes(Warp& warp, I i, u32 lanes) {  // mov.b32 {a, b}, c or c, {a, b}
    for_lanes(lanes, [&](int lane) {
        if (i.size) {
            const u32 both = warp.lanes(i.operands[2]).get<u32>(lane);
            warp.lanes(i.operands[0]).set<u16>(lane, both), warp.lanes(i.operands[1]).set<u16>(lane, both >> 16);
        } else {
            const u32 low = warp.lanes(i.operands[1]).get<u16>(lane), high = warp.lanes(i.operands[2]).get<u16>(lane);
            warp.lanes(i.operands[0]).set<u32>(lane, low | high << 16);
        }
    });
}

template <typename D, typename S> void convert(Warp& warp, I i, u32 lanes) {
    each<D, S>(warp, i, lanes, [](S a) { return (D)a; });
}
template <typename D> Action converted_to(const std::string& from) {
    static const std::map<std::string, Action> known = {
        {"u16", convert<D, u16>}, {"s16", convert<D, int16_t>}, {"u32", convert<D, u32>},
        {"s32", convert<D, s32>}, {"u64", convert<D, u64>},     {"s64", convert<D, s64>}};
    const auto found = known.find(from);
    return found == known.end() ? nullptr : found->second;
}
Action integer_conversion(const std::string& to, const std::string& from) {
    static const std::map<std::string, Action (*)(const std::string&)> known = {
        {"u16", converted_to<u16>}, {"s16", converted_to<int16_t>}, {"u32", converted_to<u32>}, {"s32", converted_to<s32>},
        {"u64", converted_to<u64>}, {"s64", converted_to<s64>},     {"f32", converted_to<float>}};
    const auto found = known.find(to);
    return found == known.end() ? nullptr : found->second(from);
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

Action of_conversions(Instruction& i, const std::vector<std::string>& words) {
    const std::string &name = words[0], &type = words.back(), &to = words[words.size() - 2];
    if (name == "mov" && i.operands.size() == 3) {
        i.size = i.text.find('{') < i.text.find(',');  // whether it divides one into two
        return move_between_sizes;
    }
    if (name == "mov") return type == "pred" ? move_pred : type == "f32" ? Copied<u32>::run : integer<Copied>(type);
    if (name == "cvta") return words[1] == "to" && words[2] == "global" ? Copied<u64>::run : nullptr;
    if (name != "cvt") return nullptr;
    if (to == "f32" && (type == "f16" || type == "bf16")) return type == "f16" ? widen<F16> : widen<Bf16>;
    if (type == "e4m3x2") return to == "f16x2" ? widen_e4m3 : nullptr;
    if (type != "f32") return integer_conversion(to, type);
    if (to == "f16" || to == "bf16") return to == "f16" ? narrow<F16> : narrow<Bf16>;
    if (to == "f16x2" || to == "bf16x2") return to == "f16x2" ? narrow_two<F16> : narrow_two<Bf16>;
    if (to == "s32") return words[1] == "rni" ? round_to_integer : nullptr;
    return nullptr;
}

