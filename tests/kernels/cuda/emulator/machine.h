// A running grid: blocks with shared memory and barriers, and warps with registers. The threads of a warp may be at different
// instructions; a warp is a set of groups of threads that are at the same one.

#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>

#include "program.h"

typedef std::mt19937 Random;

struct Range {  // of memory that a kernel may read and write
    u64 first, bytes;
};

// What a kernel has written, by sixteens of bytes.
struct Change {
    u8 before[16], after[16];
    bool changed[16];
};
typedef std::unordered_map<u64, Change> Written;

struct Launch {
    const Program& program;
    u32 grid[3], threads, shared_bytes;
    std::vector<u8> parameters;
    std::vector<Range> memory;
    Random random;
    u64 steps_left;
    bool dependent;                           // may start before the kernels before it end
    const std::vector<Written>& before;       // by these kernels, the latest last
    Written written = {};
    std::vector<std::vector<u8>> spare = {};  // registers of warps that have ended, whose contents a new one finds in its own

    u8* global(u64 address, u32 bytes) {
        for (Range& range : memory)
            if (address >= range.first && address - range.first + bytes <= range.bytes) {
                std::swap(range, memory[0]);  // the next access is probably to the same
                return (u8*)address;
            }
        throw Fault("access to memory that is no argument's");
    }

    // What a thread reads there. One that has not waited for the kernels before this one sees nothing of what they write,
    // unless PyTorch has written there since, for which this one waits in any case.
    void read(u64 address, u32 bytes, bool waited, u8* to) {
        memcpy(to, global(address, bytes), bytes);
        u32 rewritten = 0;
        for (auto kernel = before.rbegin(); kernel != before.rend() && !waited; ++kernel)
            if (const auto found = kernel->find(address / 16); found != kernel->end())
                for (u32 i = 0, at = address % 16; i < bytes; i++) {
                    const Change& change = found->second;
                    if (!change.changed[at + i]) continue;
                    rewritten |= (u32)(change.after[at + i] != to[i]) << i;
                    if (!(rewritten >> i & 1)) to[i] = change.before[at + i];
                }
    }

    void write(u64 address, u32 bytes, bool waited, const u8* from) {
        if (!waited) throw Fault("memory is written before the kernel waits for the one before it");
        u8* const to = global(address, bytes);
        Change& change = written[address / 16];
        for (u32 i = 0, at = address % 16; i < bytes; i++)
            if (!std::exchange(change.changed[at + i], true)) change.before[at + i] = to[i];
        memcpy(to, from, bytes), memcpy(change.after + address % 16, from, bytes);
    }
};

struct BlockBarrier {
    u32 arrived = 0, phase = 0, expected = 0;  // threads; expected: 0 if all that run
};

struct MemoryBarrier {  // mbarrier's 64 bits, whose layout is no program's business
    u8 pending, expected;
    u16 phase;
    s32 bytes;  // that copies have still to write
};
void change_barrier(u8* at, u32 arrivals, s64 bytes);

struct TensorMap {  // 128 bytes, likewise
    u64 first;
    u32 rank, sizes[5], box[5];
    u64 strides[4];
};

struct BoxCopy {  // by TMA, to sixteens of bytes in shared memory
    std::vector<std::pair<u32, std::array<u8, 16>>> sixteens;
    u64 barrier;
};

struct Block {
    Launch& launch;
    u32 index[3];
    std::vector<u8> shared;
    BlockBarrier barriers[16];
    std::vector<Warp> warps;
    u32 running;  // warps
    std::vector<BoxCopy> boxes = {};  // under way

    Block(Launch& launch, u32 number);

    u8* at(u64 address, u32 bytes) {
        if (address > shared.size() || bytes > shared.size() - address) throw Fault("access outside of shared memory");
        return &shared[address];
    }

    void arrive(u32 number, u32 threads);
    void finish_box(const BoxCopy& copy);
    void finish_some_boxes();
    void complete(BlockBarrier& barrier) {
        const u32 all = barrier.expected ? barrier.expected : 32 * running;
        if (barrier.arrived && barrier.arrived >= all) barrier.arrived = 0, barrier.phase++;
    }
};

struct Group {
    int at;
    u32 lanes;
    bool waits;  // for the other threads of its warp
};

struct Copy {  // from global to shared memory, of each lane
    u64 to[32];
    u8 data[32][16];
    u32 size, lanes, number[32];  // number: of the lane's group
};

struct Product {  // of wgmma: until a wait for its group, what it reads in shared memory must not change
    u32 columns, group;
    std::vector<u64> descriptors;
    std::vector<u16> numbers;
};

struct Lanes {  // where the lanes of a warp have a value
    u8* first;
    u32 stride;

    template <typename T> T get(int lane) const {
        T value;
        memcpy(&value, first + lane * stride, sizeof(T));
        return value;
    }
    template <typename T> void set(int lane, T value) const { memcpy(first + lane * stride, &value, sizeof(T)); }
};

struct Warp {
    Block* block;
    u32 number;
    std::vector<u8> registers;
    std::vector<Group> groups;
    std::vector<Copy> copies;
    std::vector<Product> products;
    u32 committed[32] = {};      // groups of copies
    u32 committed_products = 0;  // groups
    int barrier = -1;            // of the block, at which the warp waits
    u32 barrier_phase = 0;
    u32 waited;                  // lanes that have waited for the kernels before this one
    bool yields = false;         // what it waits for needs other warps

    Warp(Block& block, u32 number);
    Warp(Warp&&) = default;
    ~Warp() { if (!registers.empty()) block->launch.spare.push_back(std::move(registers)); }

    Lanes lanes(const Operand& operand) {
        if (operand.constant) return {(u8*)&operand.value, 0};
        return {registers.data() + operand.place, operand.stride};
    }
    // Of a lane, from an operand in brackets.
    u64 address(const Operand& operand, int lane, u32 bytes) {
        const Lanes base = lanes(operand);
        const u64 at = (operand.stride == 4 ? base.get<u32>(lane) : base.get<u64>(lane)) + operand.offset;
        if (at % bytes) throw Fault("an address is not a multiple of " + std::to_string(bytes));
        return at;
    }
    u8* shared_at(const Operand& operand, int lane, u32 bytes) { return block->at(address(operand, lane, bytes), bytes); }
    bool ended() const { return groups.empty(); }
    u32 alive() const {
        u32 all = 0;
        for (const Group& group : groups) all |= group.lanes;
        return all;
    }
    bool runs() const { return !ended() && (barrier < 0 || block->barriers[barrier].phase != barrier_phase); }
    bool has_waited(int lane) const { return waited >> lane & 1; }
    int run(int most_steps);  // returns how many it ran

   private:
    u32 split(Group& group);
    Group& choose(u32 lanes);
    u32 allowed(const Instruction& instruction);
    void step(Group& group);
    void end(Group& group, u32 lanes);
    void merge();
};

template <typename F> void for_lanes(u32 lanes, F f) {
    for (; lanes; lanes &= lanes - 1) f(__builtin_ctz(lanes));
}
void finish_copy(Warp& warp, Copy& copy, u32 lanes);
