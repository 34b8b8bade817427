// Loads, stores, and copies to shared memory.

#include <set>

#include "actions.h"

namespace {

enum Space { GLOBAL, SHARED, PARAMETERS };

template <Space SPACE> void load(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u32 bytes = i.size * i.count;
        const u64 at = warp.address(i.operands[i.count], lane, bytes);
        u8 from[16];
        if (SPACE == GLOBAL)
            warp.block->launch.read(at, bytes, warp.has_waited(lane), from);
        else
            memcpy(from, SPACE == SHARED ? warp.block->at(at, bytes) : &warp.block->launch.parameters.at(at), bytes);
        for (u32 k = 0; k < i.count; k++) {
            u64 value = 0;
            memcpy(&value, from + k * i.size, i.size);
            const Lanes to = warp.lanes(i.operands[k]);
            to.stride == 8 ? to.set<u64>(lane, value) : to.set<u32>(lane, (u32)value);
        }
    });
    warp.yields = warp.yields || i.polls;
}

template <Space SPACE> void store(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u32 bytes = i.size * i.count;
        const u64 at = warp.address(i.operands[0], lane, bytes);
        u8 data[16];
        for (u32 k = 0; k < i.count; k++) {
            const Lanes from = warp.lanes(i.operands[1 + k]);
            memcpy(data + k * i.size, from.first + lane * from.stride, i.size);
        }
        if (SPACE == GLOBAL)
            warp.block->launch.write(at, bytes, warp.has_waited(lane), data);
        else
            memcpy(warp.block->at(at, bytes), data, bytes);
    });
}

void copy_async(Warp& warp, I i, u32 lanes) {
    Copy copy = {};
    copy.size = warp.lanes(i.operands[2]).get<u32>(0), copy.lanes = lanes;
    for_lanes(lanes, [&](int lane) {
        copy.to[lane] = warp.address(i.operands[0], lane, copy.size), copy.number[lane] = warp.committed[lane];
        const u32 bytes = i.operands.size() > 3 ? warp.lanes(i.operands[3]).get<u32>(lane) : copy.size;  // then zeros
        if (bytes) warp.block->launch.read(warp.address(i.operands[1], lane, copy.size), bytes, warp.has_waited(lane), copy.data[lane]);
    });
    if (warp.block->launch.random() % 2) finish_copy(warp, copy, lanes);
    if (copy.lanes) warp.copies.push_back(copy);
}
void commit_copies(Warp& warp, I, u32 lanes) {
    for_lanes(lanes, [&](int lane) { warp.committed[lane]++; });
}
void wait_for_copies(Warp& warp, I i, u32 lanes) {
    const u32 left = (u32)i.operands[0].value;
    for (Copy& copy : warp.copies) {
        u32 due = 0;
        for_lanes(lanes, [&](int lane) { due |= (u32)(copy.number[lane] + left < warp.committed[lane]) << lane; });
        finish_copy(warp, copy, due);
    }
    warp.copies.erase(std::remove_if(warp.copies.begin(), warp.copies.end(), [](const Copy& copy) { return !copy.lanes; }),
                      warp.copies.end());
}

void atomic_add(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u64 at = warp.address(i.operands[1], lane, 4);
        u32 value;
        warp.block->launch.read(at, 4, true, (u8*)&value);
        warp.lanes(i.operands[0]).set<u32>(lane, value);
        value += warp.lanes(i.operands[2]).get<u32>(lane);
        warp.block->launch.write(at, 4, warp.has_waited(lane), (const u8*)&value);
    });
}

const std::set<std::string> TYPES = {"u8", "u16", "u32", "u64", "b16", "b32", "b64", "f32"};
const std::set<std::string> HINTS = {"nc", "cg", "L1::no_allocate"};  // of caches

}  // namespace

const Actions memory = {
    {"atom.global.add.u32", atomic_add}, {"cp.async.ca.shared.global", copy_async}, {"cp.async.cg.shared.global", copy_async},
    {"cp.async.commit_group", commit_copies}, {"cp.async.wait_group", wait_for_copies},
};

bool find_load_or_store(Instruction& i, const std::vector<std::string>& words) {
    const bool loads = words[0] == "ld";
    if ((!loads && words[0] != "st") || !TYPES.count(words.back())) return false;
    i.size = std::stoul(words.back().substr(1)) / 8;
    for (size_t k = 1; k + 1 < words.size(); k++) {
        const std::string& word = words[k];
        if (word == "v2" || word == "v4")
            i.count = word[1] - '0';
        else if (word == "volatile")
            i.polls = loads;
        else if (word == "global")
            i.action = loads ? load<GLOBAL> : store<GLOBAL>;
        else if (word == "shared")
            i.action = loads ? load<SHARED> : store<SHARED>;
        else if (word == "param" && loads)
            i.action = load<PARAMETERS>;
        else if (!HINTS.count(word))
            return false;
    }
    return i.action != nullptr;
}
