// The functions of CUDA's driver that the package calls, for an emulated GPU: a module is PTX, and a launch runs it to its end.

#include <atomic>
#include <utility>

#include "machine.h"

namespace {

constexpr u32 UNASKED_SHARED = 48 << 10;  // bytes of shared memory that a block may have unless more was asked for

struct Function {
    Program program;
    u32 most_shared = UNASKED_SHARED - program.shared_bytes;  // bytes of dynamic shared memory
};

struct Attribute {
    int id;
    char pad[4];
    union {
        int value;
        char all[64];
    };
};

struct Configuration {
    u32 grid[3], threads[3], shared;
    void* stream;
    const Attribute* attributes;
    u32 count;
};

constexpr int PROGRAMMATIC = 6;      // an attribute of a launch
constexpr int DYNAMIC_SHARED = 8;    // of a function
constexpr u32 MOST_BLOCKS[3] = {0x7fffffff, 0xffff, 0xffff};
constexpr size_t STILL_RUNNING = 2;  // kernels that a dependent one may overlap
constexpr int FAILED = 700;          // illegal address
constexpr int TURN = 400;            // most instructions of a warp before another's turn

u32 most_blocks = 1;
u64 most_steps = 1;
std::atomic<u32> launches = 0;
// Threads launch kernels at the same time.
thread_local std::vector<Range> argument_memory;
thread_local std::vector<Written> written;  // by the last kernels
thread_local std::string last_error;

void run(Launch& launch, u32 at_once) {
    const u32 all = launch.grid[0] * launch.grid[1] * launch.grid[2];
    std::vector<std::unique_ptr<Block>> blocks;
    for (u32 next = 0, idle = 0;;) {
        while (blocks.size() < at_once && next < all) blocks.push_back(std::make_unique<Block>(launch, next++));
        if (blocks.empty()) return;
        Block& block = *blocks[launch.random() % blocks.size()];
        Warp& warp = block.warps[launch.random() % block.warps.size()];
        if (!warp.runs()) {
            // Only if none can run they never will.
            if (++idle % 4096 == 0) {
                bool any = false;
                for (const auto& each : blocks)
                    for (const Warp& other : each->warps) any = any || other.runs();
                if (!any) throw Fault("all warps wait for each other at barriers");
            }
            continue;
        }
        const u64 steps = warp.run(1 + launch.random() % TURN);
        if (launch.steps_left < steps) throw Fault("it does not end: warps wait for what never happens");
        launch.steps_left -= steps;
        if (block.running == 0 && !block.boxes.empty()) throw Fault("a block ends before its copies do");
        if (block.running == 0)
            blocks.erase(std::find_if(blocks.begin(), blocks.end(), [&](const auto& each) { return each.get() == &block; }));
    }
}

// What the driver returns, after `work`.
template <typename F> int attempt(F work) {
    try {
        work();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return FAILED;
    }
}

void launch(const Configuration& configuration, Function& function, void** values) {
    const Program& program = function.program;
    const std::vector<Range> memory = std::exchange(argument_memory, {});
    if (configuration.shared > function.most_shared) throw Fault("more shared memory than was asked for");
    const u32 threads = configuration.threads[0];
    if (!threads || threads > program.most_threads || threads % 32 || configuration.threads[1] != 1)
        throw Fault("a number of threads for which it was not compiled");
    const auto& grid = configuration.grid;
    if (!grid[0] || !grid[1] || !grid[2]) throw Fault("a grid without blocks");
    if (grid[0] > MOST_BLOCKS[0] || grid[1] > MOST_BLOCKS[1] || grid[2] > MOST_BLOCKS[2])
        throw Fault("a grid with too many blocks");
    bool dependent = false;
    for (u32 i = 0; i < configuration.count; i++)
        dependent = dependent || (configuration.attributes[i].id == PROGRAMMATIC && configuration.attributes[i].value);
    if (!dependent) written.clear();
    Launch launch = {program,
                     {grid[0], grid[1], grid[2]},
                     threads,
                     program.shared_bytes + configuration.shared,
                     std::vector<u8>(program.parameter_bytes),
                     memory,
                     Random(launches++),
                     most_steps,
                     dependent,
                     written};
    for (size_t i = 0; i < program.parameters.size(); i++)
        memcpy(&launch.parameters[program.parameters[i].place], values[i], program.parameters[i].size);
    run(launch, 1 + launch.random() % most_blocks);
    written.push_back(std::move(launch.written));
    if (written.size() > STILL_RUNNING) written.erase(written.begin());
}

}  // namespace

extern "C" {

// The most blocks that run at once, and the most instructions of a launch. Forgets what this thread's kernels have written,
// and begins the random numbers again.
void emulator_configure(u32 blocks, u64 steps) {
    most_blocks = blocks, most_steps = steps, launches = 0;
    written.clear(), argument_memory.clear();
}

// What the next kernel may read and write.
void emulator_add_memory(u64 first, u64 bytes) { argument_memory.push_back({first, bytes}); }

// Memory that another tensor has now.
void emulator_forget(u64 first, u64 bytes) {
    for (Written& kernel : written)
        for (auto at = kernel.begin(); at != kernel.end();)
            at = at->first >= first / 16 && at->first <= (first + bytes - 1) / 16 ? kernel.erase(at) : std::next(at);
}

int cuModuleLoadData(void** module, const char* ptx) {
    return attempt([&] {
        Program program = parse(ptx);
        if (program.shared_bytes > UNASKED_SHARED) throw Fault("more static shared memory than a kernel may have");
        *module = new Function{std::move(program)};
    });
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    *function = module;
    return attempt([&] {
        if (((Function*)module)->program.name != name) throw Fault("the module has no kernel of this name");
    });
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    return attempt([&] {
        Function& kernel = *(Function*)function;
        if (attribute == DYNAMIC_SHARED && kernel.program.shared_bytes + value > SHARED_LIMIT)
            throw Fault("more shared memory than a block can have");
        if (attribute == DYNAMIC_SHARED) kernel.most_shared = value;
    });
}

int cuTensorMapEncodeTiled(TensorMap* map, int, u32 rank, u64 first, const u64* sizes, const u64* strides, const u32* box,
                           const u32* element_strides, int, int, int, int) {
    return attempt([&] {
        *map = {first, rank, {}, {}, {}};
        bool right = first % 16 == 0 && (u64)map % 64 == 0 && rank >= 3 && rank <= 5 && box[0] == 128;
        u64 last = sizes[0];
        for (u32 i = 0; i < rank; i++) {
            map->sizes[i] = sizes[i], map->box[i] = box[i];
            right = right && sizes[i] && sizes[i] <= 1ul << 32 && box[i] && box[i] <= 256 && element_strides[i] == 1;
            if (i) map->strides[i - 1] = strides[i - 1], last += (sizes[i] - 1) * strides[i - 1];
            right = right && (!i || (strides[i - 1] % 16 == 0 && strides[i - 1] < 1ul << 40));
        }
        if (!right) throw Fault("a tensor map that TMA cannot use");
        emulator_add_memory(first, last);  // the next kernel's
    });
}

int cuLaunchKernelEx(const Configuration* configuration, void* function, void** values, void**) {
    return attempt([&] { launch(*configuration, *(Function*)function, values); });
}

int cuGetErrorString(int, const char** text) {
    *text = last_error.c_str();
    return 0;
}
}
