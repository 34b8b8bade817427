// What the parser makes of PTX, and what a warp runs: instructions whose operands are places in a warp's registers.

#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;

struct Warp;
struct Instruction;
typedef void (*Action)(Warp&, const Instruction&, u32 lanes);

struct Operand {  // a register, or a constant that all lanes share; in an address, what is added to it
    bool constant = false;
    u32 place = 0, stride = 0;  // bytes, of the first lane's and from one lane's to the next
    u64 value = 0;
    s64 offset = 0;
};

enum class Kind {
    PLAIN,
    BRANCH,
    EXIT,
    CONVERGENT,  // all threads of the warp that have not ended take part
    BARRIER,     // of a block: they wait
};

struct Instruction {
    Kind kind = Kind::PLAIN;
    Action action = nullptr;
    bool guarded = false, negated = false;
    bool polls = false;  // it may be one of many until another warp has written
    Operand guard;
    std::vector<Operand> operands;  // as they are written, without the braces of vectors
    u32 count = 1, size = 0;        // of a vector's elements, and bytes of one; wgmma: columns
    int target = 0;                 // of a branch
    std::string text;
};

struct Parameter {
    u32 place, size;  // bytes
};

struct Program {
    std::string name;
    std::vector<Parameter> parameters;
    u32 parameter_bytes = 0, register_bytes = 0;
    u32 shared_bytes = 0;  // besides those that it is given at launch
    u32 most_threads = 1024;
    std::map<std::string, Operand> special;  // %tid.x and its like, which are set when a warp starts
    std::vector<Instruction> instructions;
};

struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

constexpr u32 SHARED_LIMIT = 227 << 10;  // bytes that a block may have

Program parse(const std::string& ptx);                                             // parser.cpp
void find_action(Instruction& instruction, const std::vector<std::string>& words);  // actions.cpp; words of its name
