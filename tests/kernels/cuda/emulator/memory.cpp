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

void parameter_address(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const u64 place = warp.lanes(i.operands[1]).get<u64>(lane);
        warp.lanes(i.operands[0]).set<u64>(lane, (u64)&warp.block->launch.parameters.at(place));
    });
}

// Operands: to, map, the box's first coordinates, barrier. A row of a box is 128 bytes, whose sixteen i is at i ^ r % 8 if it begins at
// 128 r. What is outside of the tensor becomes zeros.
template <u32 RANK> void copy_box(Warp& warp, I i, u32 lanes) {
    for_lanes(lanes, [&](int lane) {
        const auto value = [&](u32 operand) { return warp.lanes(i.operands[operand]).get<u32>(lane); };
        TensorMap map;
        memcpy(&map, (const void*)warp.lanes(i.operands[1]).get<u64>(lane), sizeof(map));
        if (map.rank != RANK) throw Fault("a tensor map of another rank");
        s32 first[RANK];
        for (u32 k = 0; k < RANK; k++) first[k] = value(2 + k);
        if (value(0) % 128 || first[0] % 16) throw Fault("a box that is not aligned");
        BoxCopy copy = {{}, value(2 + RANK)};
        u32 rows = 1;
        for (u32 k = 1; k < RANK; k++) rows *= map.box[k];
        for (u32 row = 0; row < rows; row++) {
            u64 from = map.first + first[0];
            bool inside = true;
            for (u32 k = 1, rest = row; k < RANK; rest /= map.box[k++]) {
                const s64 at = first[k] + (s64)(rest % map.box[k]);
                inside = inside && at >= 0 && at < (s64)map.sizes[k], from += at * map.strides[k - 1];
            }
            const u32 to = value(0) + row * 128;
            for (u32 sixteen = 0; sixteen < 8; sixteen++) {
                const s64 left = (s64)map.sizes[0] - first[0] - sixteen * 16;
                std::array<u8, 16> data = {};
                if (inside && left > 0)
                    warp.block->launch.read(from + sixteen * 16, std::min<s64>(left, 16), warp.has_waited(lane), data.data());
                copy.sixteens.emplace_back(to + (sixteen ^ to / 128 % 8) * 16, data);
            }
        }
        if (warp.block->launch.random() % 2)
            warp.block->finish_box(copy);
        else
            warp.block->boxes.push_back(std::move(copy));
    });
}

#define BOX_COPY(RANK) "cp.async.bulk.tensor." #RANK "d.shared::cluster.global.mbarrier::complete_tx::bytes"

const std::set<std::string> TYPES = {"u8", "u16", "u32", "u64", "b16", "b32", "b64", "f32"};
const std::set<std::string> HINTS = {"nc", "cg", "L1::no_allocate", "release", "gpu"};  // of caches; memory is written at once

}  // namespace

const Actions memory = {
    {"atom.global.add.u32", atomic_add}, {"cp.async.ca.shared.global", copy_async}, {"cp.async.cg.shared.global", copy_async},
    {BOX_COPY(3), copy_box<3>}, {BOX_COPY(4), copy_box<4>}, {"cvta.param.u64", parameter_address},
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
        else if (word == "volatile" || word == "acquire")
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
