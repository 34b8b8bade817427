// Loads, stores, and copies to shared memory.

#include "actions.h"

namespace {

enum Space { GLOBAL, SHARED, PARAMETERS };

template <Space SPACE> void load(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u32 bytes = i.size * i.count;
        const u64 at = warp.address(i.operands[i.count], lane, bytes);
        u8 from[16];
        if (SPACE == GLOBAL)
            warp.block->launch.read(at, bytes, warp.waited, from);
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
            warp.block->launch.write(at, bytes, warp.waited, data);
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
        if (bytes) warp.block->launch.read(warp.address(i.operands[1], lane, copy.size), bytes, warp.waited, copy.data[lane]);
    });
    if (warp.block->launch.random() % 2) finish_copy(warp, copy, lanes);
    if (copy.lanes) warp.copies.push_back(copy);
}
void commit_copies(Warp& warp, I, u32 lanes) {
    for_lanes(lanes, [&](int lane) { warp.committed[lane]++; });
}
void wait_for_copies(Warp& warp, I i, u32 lanes) {
    const u32 left = i.operands.empty() ? 0 : (u32)i.operands[0].value;
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
        warp.block->launch.write(at, 4, warp.waited, (const u8*)&value);
    });
}

u32 size_of_type(const std::string& type) { return std::stoul(type.substr(1)) / 8; }

}  // namespace

Action of_memory(Instruction& i, const std::vector<std::string>& words) {
    const std::string& name = words[0];
    if (name == "atom" && words[1] == "global" && words[2] == "add" && words.back() == "u32") return atomic_add;
    if (name == "cp" && words[1] == "async")
        return words[2] == "commit_group" ? commit_copies : words[2].rfind("wait", 0) == 0 ? wait_for_copies : copy_async;
    if (name != "ld" && name != "st") return nullptr;
    i.size = size_of_type(words.back()), i.count = 1;
    Action action = nullptr;
    for (const std::string& word : words) {
        if (word == "v2" || word == "v4") i.count = word[1] - '0';
        if (word == "volatile") i.polls = name == "ld";
        if (word == "global") action = name == "ld" ? load<GLOBAL> : store<GLOBAL>;
        if (word == "shared" || word == "shared::cta") action = name == "ld" ? load<SHARED> : store<SHARED>;
        if (word == "param" && name == "ld") action = load<PARAMETERS>;
    }
    return action;
}

