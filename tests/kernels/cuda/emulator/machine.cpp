// Runs the blocks of a grid. Warps take turns in a random order, a few instructions each, so that nothing can rely on an order
// that barriers do not give, and now and then some threads of a warp run ahead of the others until all must meet. Copies to
// shared memory happen when they begin or when they are waited for, at random.

#include "machine.h"

Block::Block(Launch& launch, u32 number) : launch(launch), shared(launch.shared_bytes, 0xFF) {
    for (int i = 0; i < 3; i++) index[i] = number % launch.grid[i], number /= launch.grid[i];
    running = launch.threads / 32;
    warps.reserve(running);
    for (u32 warp = 0; warp < running; warp++) warps.emplace_back(*this, warp);
}

void Block::arrive(u32 number, u32 threads) {
    if (number >= 16 || threads % 32) throw Fault("a block has 16 barriers, for whole warps");
    BlockBarrier& barrier = barriers[number];
    if (barrier.arrived && barrier.expected != threads) throw Fault("warps expect other numbers of threads at a barrier");
    barrier.expected = threads, barrier.arrived += 32;
    complete(barrier);
}

void Block::finish_box(const BoxCopy& copy) {
    for (const auto& [to, data] : copy.sixteens) memcpy(at(to, 16), data.data(), 16);
    change_barrier(at(copy.barrier, 8), 0, -(s64)copy.sixteens.size() * 16);
}

void Block::finish_some_boxes() {
    for (size_t i = boxes.size(); i-- > 0;)
        if (launch.random() % 2) finish_box(boxes[i]), boxes.erase(boxes.begin() + i);
}

Warp::Warp(Block& block, u32 number) : block(&block), number(number) {
    Launch& launch = block.launch;
    if (!launch.spare.empty()) registers = std::move(launch.spare.back()), launch.spare.pop_back();
    registers.resize(launch.program.register_bytes);
    groups.push_back({0, ~0u, false});
    waited = launch.dependent ? 0 : ~0u;
    for (const auto& [name, operand] : launch.program.special)
        for (int lane = 0; lane < 32; lane++) {
            const int axis = name.back() - 'x';
            u32 value;
            if (name == "%laneid")
                value = lane;
            else if (name.rfind("%tid.", 0) == 0)
                value = axis ? 0 : number * 32 + lane;
            else if (name.rfind("%ntid.", 0) == 0)
                value = axis ? 1 : launch.threads;
            else if (name.rfind("%ctaid.", 0) == 0)
                value = block.index[axis];
            else if (name.rfind("%nctaid.", 0) == 0)
                value = launch.grid[axis];
            else
                throw Fault("special register " + name + " is not emulated");
            lanes(operand).set<u32>(lane, value);
        }
}

void finish_copy(Warp& warp, Copy& copy, u32 lanes) {
    for_lanes(copy.lanes & lanes, [&](int lane) {
        memcpy(warp.block->at(copy.to[lane], copy.size), copy.data[lane], copy.size);
    });
    copy.lanes &= ~lanes;
}

// Some threads of a group, which become one of their own, or all.
u32 Warp::split(Group& group) {
    const u32 some = group.lanes & block->launch.random(), others = group.lanes & ~some;
    if (!some || !others) return some;
    group.lanes = others;
    groups.push_back({group.at, some, false});
    return some;
}

// Of these threads if they can go on, else of all, those that are behind the others, so that all meet again.
Group& Warp::choose(u32 lanes) {
    Group* chosen = nullptr;
    for (Group& group : groups)
        if (!group.waits && (group.lanes & lanes) && (!chosen || group.at < chosen->at)) chosen = &group;
    if (!chosen && lanes != ~0u) return choose(~0u);
    if (!chosen) throw Fault("threads of a warp wait for each other at different instructions");
    return *chosen;
}

// The threads whose guard allows the instruction.
u32 Warp::allowed(const Instruction& instruction) {
    if (!instruction.guarded) return ~0u;
    const Lanes guard = lanes(instruction.guard);
    u32 set = 0;
    for (int lane = 0; lane < 32; lane++) set |= (u32)(guard.get<u32>(lane) != 0) << lane;
    return instruction.negated ? ~set : set;
}

void Warp::step(Group& group) {
    const Instruction& instruction = block->launch.program.instructions[group.at];
    const u32 lanes = group.lanes & allowed(instruction);
    if (instruction.kind >= Kind::CONVERGENT && group.lanes != alive()) {
        group.waits = true;
        return;
    }
    try {
        if (lanes && instruction.action) instruction.action(*this, instruction, lanes);
    } catch (const Fault& fault) {
        throw Fault(std::string(fault.what()) + ": " + instruction.text + " (warp " + std::to_string(number) + ")");
    }
    if (barrier >= 0) {
        if (!runs()) return;
        barrier = -1;
    }
    group.at++;
    if (instruction.kind == Kind::EXIT) {
        end(group, lanes);
    } else if (instruction.kind == Kind::BRANCH && lanes == group.lanes) {
        group.at = instruction.target;
    } else if (instruction.kind == Kind::BRANCH && lanes) {
        group.lanes &= ~lanes;
        groups.push_back({instruction.target, lanes, false});
    }
}

void Warp::end(Group& group, u32 lanes) {
    group.lanes &= ~lanes;
    if (!group.lanes) groups.erase(groups.begin() + (&group - groups.data()));
    for (Group& each : groups) each.waits = false;  // there are fewer to wait for
    if (!ended()) return;
    for (Copy& copy : copies) finish_copy(*this, copy, ~0u);
    block->running--;
    for (BlockBarrier& each : block->barriers) block->complete(each);
}

void Warp::merge() {
    for (size_t i = 0; i < groups.size(); i++)
        for (size_t j = groups.size() - 1; j > i; j--)
            if (groups[i].at == groups[j].at) {
                groups[i].lanes |= groups[j].lanes, groups[i].waits = false;
                groups.erase(groups.begin() + j);
            }
}

int Warp::run(int most_steps) {
    if (barrier >= 0) barrier = -1, groups[0].at++;  // it was the only group
    // In some turns, these threads run first.
    u32 ahead = block->launch.random() % 4 ? ~0u : split(groups[block->launch.random() % groups.size()]);
    int steps = 0;
    for (yields = false; steps < most_steps && !yields;) {
        step(groups.size() == 1 ? groups[0] : choose(ahead)), steps++;
        if (ended() || barrier >= 0) break;
        if (groups.size() > 1) merge();
    }
    return steps;
}
