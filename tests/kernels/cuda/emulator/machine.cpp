// Runs the blocks of a grid. Warps take turns in a random order, a few instructions each, so that nothing can rely on an order
// that barriers do not give. Copies to shared memory happen when they begin or when they are waited for, at random.

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

Warp::Warp(Block& block, u32 number) : block(&block), number(number) {
    Launch& launch = block.launch;
    if (!launch.spare.empty()) registers = std::move(launch.spare.back()), launch.spare.pop_back();
    registers.resize(launch.program.register_bytes);
    groups.push_back({0, ~0u, false});
    waited = !launch.dependent;
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

// The threads that are behind the others, so that all meet again; or any that can go on.
Group& Warp::choose(bool any) {
    const size_t first = any ? block->launch.random() % groups.size() : 0;
    Group* chosen = nullptr;
    for (size_t i = 0; i < groups.size() && !(any && chosen); i++) {
        Group& group = groups[(first + i) % groups.size()];
        if (!group.waits && (!chosen || group.at < chosen->at)) chosen = &group;
    }
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
    Group* group = &choose(block->launch.random() % 4 == 0);
    int steps = 0;
    for (yields = false; steps < most_steps && !yields;) {
        step(*group), steps++;
        if (ended() || barrier >= 0) break;
        if (groups.size() > 1) merge();
        group = groups.size() == 1 ? &groups[0] : &choose(false);
    }
    return steps;
}
