// Finds what an instruction does. One that is not emulated is an error when a module is loaded.

#include "actions.h"

void find_action(Instruction& i, const std::vector<std::string>& words) {
    std::string name;
    for (const std::string& word : words) name += (name.empty() ? "" : ".") + word;
    if (words[0] == "bra") {
        i.kind = Kind::BRANCH;
        return;
    }
    if (name == "ret") {
        i.kind = Kind::EXIT;
        return;
    }
    if (find_words(i, name) || find_load_or_store(i, words) || find_product_of_tiles(i, words)) return;
    for (const Actions* table : {&numbers, &bits, &conversions, &memory, &barriers, &threads, &matrices})
        if (const auto found = table->find(name); found != table->end()) {
            i.action = found->second;
            if (table == &threads || table == &matrices) i.kind = Kind::CONVERGENT;
            if (words[0] == "bar" && words[1] != "warp") i.kind = Kind::BARRIER;
            return;
        }
    throw Fault("the emulator does not know the instruction " + i.text);
}
