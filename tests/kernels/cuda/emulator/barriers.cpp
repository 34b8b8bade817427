// Barriers, fences, and waits for kernels.

#include "actions.h"

namespace {

void nothing(Warp&, I, u32) {}

void wait_for_kernels(Warp& warp, I, u32 lanes) { warp.waited |= lanes; }

void arrive_at_block_barrier(Warp& warp, I i, u32) {
    const u32 threads = i.operands.size() > 1 ? warp.lanes(i.operands[1]).get<u32>(0) : 0;
    warp.block->arrive(warp.lanes(i.operands[0]).get<u32>(0), threads);
}
void wait_at_block_barrier(Warp& warp, I i, u32 lanes) {
    warp.barrier = warp.lanes(i.operands[0]).get<u32>(0), warp.barrier_phase = warp.block->barriers[warp.barrier & 15].phase;
    arrive_at_block_barrier(warp, i, lanes);
}

void begin_barrier(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u32 expected = warp.lanes(i.operands[1]).get<u32>(lane);
        if (expected > 255) throw Fault("more than 255 arrivals are not emulated");
        const MemoryBarrier barrier = {(u8)expected, (u8)expected, 0, 0};
        memcpy(warp.shared_at(i.operands[0], lane, 8), &barrier, 8);
    });
}
void arrive_at_barrier(Warp& warp, I i, u32 lanes) {
    if (i.operands.size() != 2) throw Fault("only single arrivals are emulated");
    for_lanes(lanes, [&](int lane) { change_barrier(warp.shared_at(i.operands[1], lane, 8), 1, 0); });
}
void expect_bytes(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        change_barrier(warp.shared_at(i.operands[1], lane, 8), 1, warp.lanes(i.operands[2]).get<u32>(lane));
    });
}
void try_barrier(Warp& warp, I i, u32 lanes) {
    warp.block->finish_some_boxes();
    for_lanes(lanes, [&](int lane) {
        MemoryBarrier barrier;
        memcpy(&barrier, warp.shared_at(i.operands[1], lane, 8), 8);
        const bool passed = (barrier.phase & 1) != warp.lanes(i.operands[2]).get<u32>(lane);
        warp.lanes(i.operands[0]).set<u32>(lane, passed);
        warp.yields = warp.yields || !passed;
    });
}

}  // namespace

void change_barrier(u8* at, u32 arrivals, s64 bytes) {
    MemoryBarrier barrier;
    memcpy(&barrier, at, 8);
    barrier.pending -= arrivals, barrier.bytes += bytes;
    if (barrier.pending == 0 && barrier.bytes == 0) barrier.pending = barrier.expected, barrier.phase++;
    memcpy(at, &barrier, 8);
}

// Memory is written at once.
const Actions barriers = {
    {"bar.sync", wait_at_block_barrier}, {"bar.arrive", arrive_at_block_barrier},
    {"mbarrier.init.shared::cta.b64", begin_barrier}, {"mbarrier.arrive.shared::cta.b64", arrive_at_barrier},
    {"mbarrier.arrive.expect_tx.shared::cta.b64", expect_bytes},
    {"mbarrier.try_wait.parity.shared::cta.b64", try_barrier}, {"griddepcontrol.wait", wait_for_kernels},
    {"griddepcontrol.launch_dependents", nothing}, {"fence.proxy.async.shared::cta", nothing}, {"membar.gl", nothing},
};
