// What each PTX instruction does, by its family. An instruction of none is an error when a module is loaded.

#include "actions.h"

void find_action(Instruction& i, const std::vector<std::string>& words) {
    if (words[0] == "bra") {
        i.kind = Kind::BRANCH;
        return;
    }
    if (words[0] == "ret") {
        i.kind = Kind::EXIT;
        return;
    }
    for (const auto family : {of_numbers, of_bits, of_conversions, of_memory, of_threads, of_matrices})
        if (!i.action) i.action = family(i, words);
    if (!i.action) throw Fault("the emulator does not know the instruction " + i.text);
}
