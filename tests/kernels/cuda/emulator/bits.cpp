// Logic, shifts, and fields of bits.

#include "actions.h"

namespace {

OPERATION(And, T, BOTH, (T a, T b), (T)(a & b))
OPERATION(Or, T, BOTH, (T a, T b), (T)(a | b))
OPERATION(Xor, T, BOTH, (T a, T b), (T)(a ^ b))
OPERATION(Not, T, T, (T a), (T)~a)
#define CHOICE T, T, u32
OPERATION(Select, T, CHOICE, (T a, T b, u32 p), p ? a : b)
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

#define LOGIC(NAME, OP) PLAIN_BITS(NAME, OP), {NAME ".pred", OP<u32>::run}

const Actions bits = {
    LOGIC("and", And), LOGIC("or", Or), LOGIC("xor", Xor), PLAIN_BITS("not", Not), {"not.pred", not_pred},
    PLAIN_BITS("shl", ShiftLeft), SIGNED("shr", ShiftRight), UNSIGNED("shr", ShiftRight), {"bfi.b32", insert_bits},
    {"brev.b32", reverse_bits}, {"bfind.shiftamt.u32", shift_to_the_first}, {"lop3.b32", logic_of_three},
    {"prmt.b32", permute_bytes},
    PLAIN_BITS("selp", Select), UNSIGNED("selp", Select), SIGNED("selp", Select), {"selp.f32", Select<u32>::run},
};
