// Exchange between the threads of a warp, and waits for other warps and kernels.

#include "actions.h"

namespace {

void nothing(Warp&, I, u32) {}

enum Shuffle { INDEX, BUTTERFLY, UP, DOWN };
template <Shuffle MODE> void shuffle(Warp& warp, I i, u32 lanes) {
    const bool tells = i.operands.size() == 6;  // whether a value came from another lane
    const Lanes from = warp.lanes(i.operands[1 + tells]), by = warp.lanes(i.operands[2 + tells]);
    u32 values[32];
    for (int lane = 0; lane < 32; lane++) values[lane] = from.get<u32>(lane);
    for_lanes(lanes, [&](int lane) {
        const u32 limits = warp.lanes(i.operands[3 + tells]).get<u32>(lane), b = by.get<u32>(lane) & 31;
        const int segment = limits >> 8 & 31, clamp = limits & 31;
        const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        const int other = MODE == INDEX ? first | ((int)b & ~segment) : MODE == BUTTERFLY ? lane ^ (int)b : MODE == UP ? lane - (int)b : lane + (int)b;
        const bool valid = MODE == UP ? other >= last : other <= last;
        warp.lanes(i.operands[0]).set<u32>(lane, values[valid ? other : lane]);
        if (tells) warp.lanes(i.operands[1]).set<u32>(lane, valid);
    });
}
void ballot(Warp& warp, I i, u32 lanes) {
    u32 votes = 0;
    for_lanes(lanes, [&](int lane) { votes |= (u32)(warp.lanes(i.operands[1]).get<u32>(lane) != 0) << lane; });
    for_lanes(lanes, [&](int lane) { warp.lanes(i.operands[0]).set<u32>(lane, votes); });
}
template <bool LARGEST> void reduce(Warp& warp, I i, u32 lanes) {
    s64 result = LARGEST ? INT32_MIN : 0;
    for_lanes(lanes, [&](int lane) {
        const s32 value = warp.lanes(i.operands[1]).get<s32>(lane);
        result = LARGEST ? std::max<s64>(result, value) : result + value;
    });
    for_lanes(lanes, [&](int lane) { warp.lanes(i.operands[0]).set<s32>(lane, (s32)result); });
}

void wait_for_kernels(Warp& warp, I, u32) { warp.waited = true; }

void block_barrier(Warp& warp, I i, u32) {
    const u32 number = warp.lanes(i.operands[0]).get<u32>(0);
    const u32 threads = i.operands.size() > 1 ? warp.lanes(i.operands[1]).get<u32>(0) : 0;
    if (i.size) warp.barrier = number, warp.barrier_turn = warp.block->barriers[number & 15].turn;
    warp.block->arrive(number, threads);
}

struct MemoryBarrier {  // mbarrier's 64 bits, whose layout is no program's business
    u16 missing, all;
    u32 turn;
};
void begin_barrier(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u16 all = warp.lanes(i.operands[1]).get<u32>(lane);
        const MemoryBarrier barrier = {all, all, 0};
        memcpy(warp.shared_at(i.operands[0], lane, 8), &barrier, 8);
    });
}
void arrive_at_barrier(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        u8* const at = warp.shared_at(i.operands[1], lane, 8);
        MemoryBarrier barrier;
        memcpy(&barrier, at, 8);
        if (barrier.missing == 0) throw Fault("more arrivals at a barrier than it expects");
        if (--barrier.missing == 0) barrier.missing = barrier.all, barrier.turn++;
        memcpy(at, &barrier, 8);
    });
}
void try_barrier(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        MemoryBarrier barrier;
        memcpy(&barrier, warp.shared_at(i.operands[1], lane, 8), 8);
        const bool passed = (barrier.turn & 1) != warp.lanes(i.operands[2]).get<u32>(lane);
        warp.lanes(i.operands[0]).set<u32>(lane, passed);
        warp.yields = warp.yields || !passed;
    });
}

}  // namespace

Action of_threads(Instruction& i, const std::vector<std::string>& words) {
    const std::string& name = words[0];
    if (name == "bar" && words[1] == "warp") {
        i.kind = Kind::CONVERGENT;
        return nothing;
    }
    if (name == "bar") {
        i.kind = Kind::BARRIER, i.size = words[1] == "sync";
        return words[1] == "sync" || words[1] == "arrive" ? block_barrier : nullptr;
    }
    if (name == "mbarrier") {
        if (words[1] == "init") return begin_barrier;
        if (words[1] == "arrive" && words[2].rfind("shared", 0) == 0) return arrive_at_barrier;
        return words[1] == "try_wait" && words[2] == "parity" ? try_barrier : nullptr;
    }
    static const std::map<std::string, Action> known = {{"idx", shuffle<INDEX>}, {"bfly", shuffle<BUTTERFLY>}, {"up", shuffle<UP>},
                                                        {"down", shuffle<DOWN>}, {"ballot", ballot},           {"add", reduce<false>},
                                                        {"max", reduce<true>}};
    if (name == "griddepcontrol") return words[1] == "wait" ? wait_for_kernels : nothing;
    // Memory is written at once, and so are the sums of products.
    if (name == "fence" || name == "membar" || (name == "wgmma" && words[1] != "mma_async")) return nothing;
    if (name != "shfl" && name != "vote" && name != "redux") return nullptr;
    i.kind = Kind::CONVERGENT;
    const auto found = known.find(words[2]);
    return found == known.end() ? nullptr : found->second;
}

