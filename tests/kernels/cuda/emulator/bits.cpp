// Logic, shifts, and fields of bits.

#include "actions.h"

namespace {

OPERATION(And, T, BOTH, (T a, T b), (T)(a & b))
OPERATION(Or, T, BOTH, (T a, T b), (T)(a | b))
OPERATION(Xor, T, BOTH, (T a, T b), (T)(a ^ b))
OPERATION(Not, T, T, (T a), (T)~a)
#define BITS (8 * sizeof(T))
#define SHIFTED T, u32
OPERATION(ShiftLeft, T, SHIFTED, (T a, u32 b), b >= BITS ? (T)0 : (T)(a << b))
OPERATION(ShiftRight, T, SHIFTED, (T a, u32 b), b >= BITS ? (T)(a < 0 ? -1 : 0) : (T)(a >> b))

void not_pred(Warp& warp, I i, u32 lanes) {
    each<u32, u32>(warp, i, lanes, [](u32 a) { return (u32)!a; });
}

void insert_bits(Warp& warp, I i, u32 lanes) {
    each<u32, u32, u32, u32, u32>(warp, i, lanes, [](u32 a, u32 b, u32 at, u32 count) {
        at &= 255, count &= 255;
        const u64 mask = at < 32 ? ((1ull << std::min(count, 32u)) - 1) << at : 0;
        return (u32)((b & ~mask) | (((u64)a << at) & mask));
    });
}
void reverse_bits(Warp& warp, I i, u32 lanes) {
    each<u32, u32>(warp, i, lanes, [](u32 a) {
        u32 b = 0;
        for (int k = 0; k < 32; k++) b |= (a >> k & 1) << (31 - k);
        return b;
    });
}
void shift_to_the_first(Warp& warp, I i, u32 lanes) {
    each<u32, u32>(warp, i, lanes, [](u32 a) { return a ? (u32)__builtin_clz(a) : ~0u; });
}
void logic_of_three(Warp& warp, I i, u32 lanes) {
    each<u32, u32, u32, u32, u32>(warp, i, lanes, [](u32 a, u32 b, u32 c, u32 table) {
        u32 d = 0;
        for (int k = 0; k < 8; k++)
            if (table >> k & 1) d |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
        return d;
    });
}
void permute_bytes(Warp& warp, I i, u32 lanes) {
    each<u32, u32, u32, u32>(warp, i, lanes, [](u32 a, u32 b, u32 choice) {
        const u64 both = (u64)b << 32 | a;
        u32 d = 0;
        for (int k = 0; k < 4; k++) {
            const u32 which = choice >> 4 * k & 15;
            const u8 byte = both >> 8 * (which & 7);
            d |= (u32)(which & 8 ? (byte & 0x80 ? 0xFF : 0) : byte) << 8 * k;
        }
        return d;
    });
}

}  // namespace

Action of_bits(Instruction&, const std::vector<std::string>& words) {
    const std::string &name = words[0], &type = words.back();
    if (name == "and") return integer<And>(type);
    if (name == "or") return integer<Or>(type);
    if (name == "xor") return integer<Xor>(type);
    if (name == "not") return type == "pred" ? not_pred : integer<Not>(type);
    if (name == "shl") return integer<ShiftLeft>(type);
    if (name == "shr") return integer<ShiftRight>(type);
    if (name == "bfi") return insert_bits;
    if (name == "brev") return reverse_bits;
    if (name == "bfind" && words[1] == "shiftamt" && type == "u32") return shift_to_the_first;
    if (name == "lop3") return logic_of_three;
    if (name == "prmt" && words.size() == 2) return permute_bytes;
    return nullptr;
}

