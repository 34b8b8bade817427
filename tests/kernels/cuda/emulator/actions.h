// The families of instructions. Each function finds the action of an instruction by the words of its name, and sets what else the
// action needs; nullptr if the instruction is of another family.

#pragma once
#include "machine.h"
#include "numbers.h"

Action of_numbers(Instruction& instruction, const std::vector<std::string>& words);      // numbers.cpp
Action of_bits(Instruction& instruction, const std::vector<std::string>& words);         // bits.cpp
Action of_conversions(Instruction& instruction, const std::vector<std::string>& words);  // conversions.cpp
Action of_memory(Instruction& instruction, const std::vector<std::string>& words);       // memory.cpp
Action of_threads(Instruction& instruction, const std::vector<std::string>& words);      // threads.cpp
Action of_matrices(Instruction& instruction, const std::vector<std::string>& words);     // matrices.cpp

typedef const Instruction& I;

template <typename T> T flush(T value) { return value; }
inline float flush(float value) { return flushed(value); }

template <typename D, typename... S, typename F, size_t... K>
void each_lane(Warp& warp, I i, u32 lanes, F f, std::index_sequence<K...>) {
    const Lanes to = warp.lanes(i.operands[0]), from[] = {warp.lanes(i.operands[1 + K])...};
    for_lanes(lanes, [&](int lane) { to.set<D>(lane, flush(f(flush(from[K].template get<S>(lane))...))); });
}

// The first operand of each lane becomes a function of the others.
template <typename D, typename... S, typename F> void each(Warp& warp, I i, u32 lanes, F f) {
    each_lane<D, S...>(warp, i, lanes, f, std::index_sequence_for<S...>());
}

// An operation of one type T, and its action for each type.
#define OPERATION(NAME, D, SOURCES, PARAMETERS, RESULT)                                                     \
    template <typename T> struct NAME {                                                                     \
        static void run(Warp& warp, I i, u32 lanes) {                                                       \
            each<D, SOURCES>(warp, i, lanes, [&] PARAMETERS -> D { return RESULT; });                       \
        }                                                                                                   \
    };
#define BOTH T, T

template <template <typename> typename OP> Action integer(const std::string& type) {
    static const std::map<std::string, Action> known = {
        {"s16", OP<int16_t>::run}, {"u16", OP<u16>::run}, {"b16", OP<u16>::run}, {"s32", OP<s32>::run}, {"u32", OP<u32>::run},
        {"b32", OP<u32>::run},     {"s64", OP<s64>::run}, {"u64", OP<u64>::run}, {"b64", OP<u64>::run}, {"pred", OP<u32>::run}};
    const auto found = known.find(type);
    return found == known.end() ? nullptr : found->second;
}

template <template <typename> typename OP> Action number(const std::string& type) {
    return type == "f32" ? OP<float>::run : integer<OP>(type);
}
