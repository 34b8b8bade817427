// Exchange between the threads of a warp.

#include "actions.h"

namespace {

// The mask must name the threads that take part, of those that have not ended.
void check_mask(Warp& warp, const Operand& mask, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        if ((warp.lanes(mask).get<u32>(lane) & warp.alive()) != lanes) throw Fault("a mask names other threads than take part");
    });
}

void meet(Warp& warp, I i, u32 lanes) { check_mask(warp, i.operands[0], lanes); }

enum Shuffle { INDEX, BUTTERFLY, UP, DOWN };
template <Shuffle MODE> void shuffle(Warp& warp, I i, u32 lanes) {
    const bool tells = i.operands.size() == 6;  // whether a value came from another lane
    const Lanes from = warp.lanes(i.operands[1 + tells]), by = warp.lanes(i.operands[2 + tells]);
    check_mask(warp, i.operands[4 + tells], lanes);
    u32 values[32];
    for (int lane = 0; lane < 32; lane++) values[lane] = from.get<u32>(lane);
    for_lanes(lanes, [&](int lane) {
        const u32 limits = warp.lanes(i.operands[3 + tells]).get<u32>(lane), b = by.get<u32>(lane) & 31;
        const int segment = limits >> 8 & 31, clamp = limits & 31;
        const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        const int shifted = MODE == UP ? lane - (int)b : lane + (int)b;
        const int other = MODE == INDEX ? first | ((int)b & ~segment) : MODE == BUTTERFLY ? lane ^ (int)b : shifted;
        const bool valid = MODE == UP ? other >= last : other <= last;
        warp.lanes(i.operands[0]).set<u32>(lane, values[valid ? other : lane]);
        if (tells) warp.lanes(i.operands[1]).set<u32>(lane, valid);
    });
}
void ballot(Warp& warp, I i, u32 lanes) {
    check_mask(warp, i.operands[2], lanes);
    u32 votes = 0;
    for_lanes(lanes, [&](int lane) { votes |= (u32)(warp.lanes(i.operands[1]).get<u32>(lane) != 0) << lane; });
    for_lanes(lanes, [&](int lane) { warp.lanes(i.operands[0]).set<u32>(lane, votes); });
}
template <bool LARGEST> void reduce(Warp& warp, I i, u32 lanes) {
    check_mask(warp, i.operands[2], lanes);
    s64 result = LARGEST ? INT32_MIN : 0;
    for_lanes(lanes, [&](int lane) {
        const s32 value = warp.lanes(i.operands[1]).get<s32>(lane);
        result = LARGEST ? std::max<s64>(result, value) : result + value;
    });
    for_lanes(lanes, [&](int lane) { warp.lanes(i.operands[0]).set<s32>(lane, (s32)result); });
}

}  // namespace

const Actions threads = {
    {"shfl.sync.idx.b32", shuffle<INDEX>}, {"shfl.sync.bfly.b32", shuffle<BUTTERFLY>}, {"shfl.sync.up.b32", shuffle<UP>},
    {"shfl.sync.down.b32", shuffle<DOWN>}, {"vote.sync.ballot.b32", ballot}, {"redux.sync.add.s32", reduce<false>},
    {"redux.sync.max.s32", reduce<true>}, {"bar.warp.sync", meet},
};
