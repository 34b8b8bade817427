// What instructions do, by their whole names, so that a variant that is not emulated is an error and not another instruction.

#pragma once
#include "machine.h"
#include "numbers.h"

typedef std::map<std::string, Action> Actions;

// Each is in a file of its name. In those of the second line all threads of a warp take part.
extern const Actions numbers, bits, conversions, memory, barriers;
extern const Actions threads, matrices;

// These have more variants than a table; false if the instruction is another.
bool find_words(Instruction& instruction, const std::string& name);                           // conversions.cpp
bool find_load_or_store(Instruction& instruction, const std::vector<std::string>& words);     // memory.cpp
bool find_product_of_tiles(Instruction& instruction, const std::vector<std::string>& words);  // matrices.cpp

typedef const Instruction& I;

template <typename T> T flush(T value) { return value; }
inline float flush(float value) { return flushed(value); }

template <typename D, typename... S, typename F, size_t... K>
void each_lane(Warp& warp, I i, u32 lanes, F f, std::index_sequence<K...>) {
    if (i.operands.size() != 1 + sizeof...(S)) throw Fault("vectors and second results are not emulated");
    const Lanes to = warp.lanes(i.operands[0]), from[] = {warp.lanes(i.operands[1 + K])...};
    for_lanes(lanes, [&](int lane) { to.set<D>(lane, flush(f(flush(from[K].template get<S>(lane))...))); });
}

// The first operand of each lane becomes a function of the others.
template <typename D, typename... S, typename F> void each(Warp& warp, I i, u32 lanes, F f) {
    each_lane<D, S...>(warp, i, lanes, f, std::index_sequence_for<S...>());
}

// An operation of one type T, and its entries in a table.
#define OPERATION(NAME, D, SOURCES, PARAMETERS, RESULT)                                               \
    template <typename T> struct NAME {                                                               \
        static void run(Warp& warp, I i, u32 lanes) {                                                 \
            each<D, SOURCES>(warp, i, lanes, [&] PARAMETERS -> D { return RESULT; });                 \
        }                                                                                             \
    };
#define BOTH T, T
#define SIGNED(NAME, OP) {NAME ".s32", OP<s32>::run}, {NAME ".s64", OP<s64>::run}
#define UNSIGNED(NAME, OP) {NAME ".u32", OP<u32>::run}, {NAME ".u64", OP<u64>::run}
#define PLAIN_BITS(NAME, OP) {NAME ".b16", OP<u16>::run}, {NAME ".b32", OP<u32>::run}, {NAME ".b64", OP<u64>::run}
