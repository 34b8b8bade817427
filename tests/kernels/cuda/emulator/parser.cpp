// Parses the PTX that NVRTC writes: one kernel, with inline assembly in scopes of its own.

#include "program.h"

namespace {

u32 bytes_of(const std::string& type) {
    if (type == ".pred") return 4;
    const u32 bits = std::stoul(type.substr(type.find_first_of("0123456789")));
    return bits / 8;
}

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts(1);
    for (char c : text)
        if (c == at)
            parts.emplace_back();
        else
            parts.back() += c;
    return parts;
}

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t\n\r");
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

struct Parser {
    std::string source;
    size_t at = 0;
    Program program;
    std::map<std::string, u32> widths;                      // of registers by their prefix, such as %r
    std::vector<std::map<std::string, Operand>> scopes{1};  // registers and symbols by name, from the outermost scope on
    std::map<std::string, int> labels;
    std::vector<std::pair<size_t, std::string>> branches;  // instructions and their labels
    int scopes_begun = 0;

    explicit Parser(const std::string& ptx) : source(ptx) {
        for (size_t start; (start = source.find("//")) != std::string::npos;) {
            const size_t end = source.find('\n', start);
            source.erase(start, (end == std::string::npos ? source.size() : end) - start);
        }
    }

    Operand new_register(u32 size) {
        Operand operand;
        operand.place = program.register_bytes, operand.stride = size < 4 ? 4 : size;
        program.register_bytes += 32 * operand.stride;
        return operand;
    }

    Operand name(const std::string& text) {
        for (size_t i = scopes.size(); i-- > 0;)
            if (const auto found = scopes[i].find(text); found != scopes[i].end()) return found->second;
        if (text[0] == '%') {
            const size_t digits = text.find_first_of("0123456789");
            if (const auto found = widths.find(text.substr(0, digits)); digits != std::string::npos && found != widths.end())
                return scopes[0][text] = new_register(found->second);
            return program.special[text] = scopes[0][text] = new_register(4);
        }
        if (text == "_") return new_register(8);
        throw Fault("PTX has an unknown name: " + text);
    }

    Operand operand(std::string text) {
        text = trimmed(text);
        Operand found;
        if (text[0] == '[') {
            text = trimmed(text.substr(1, text.size() - 2));
            const size_t plus = text.find('+');
            found = operand(text.substr(0, plus));
            if (plus != std::string::npos) found.offset = std::stol(text.substr(plus + 1));
            return found;
        }
        if (!isdigit(text[0]) && text[0] != '-') return name(text);
        found.constant = true;
        if (text[0] == '0' && (text[1] == 'f' || text[1] == 'd'))
            found.value = std::stoull(text.substr(2), nullptr, 16);
        else
            found.value = text[0] == '-' ? (u64)std::stoll(text, nullptr, 0) : std::stoull(text, nullptr, 0);
        return found;
    }

    // The next statement up to its semicolon; "{" and "}" of scopes and labels are statements.
    std::string statement() {
        at = source.find_first_not_of(" \t\n\r", at);
        if (at == std::string::npos) throw Fault("PTX ends inside a kernel");
        const size_t start = at;
        if (source[at] == '{' || source[at] == '}') return source.substr(at++, 1);
        for (; source[at] != ';'; at++) {
            if (source[at] == ':' && source[at + 1] != ':' && source[at - 1] != ':') return source.substr(start, ++at - start);
        }
        return source.substr(start, at++ - start);
    }

    // .align 4 .b8 name[16], .u32 name, or .align 4 .u32 name = 2048: the bytes, and the name.
    std::pair<u32, std::string> variable(const std::string& text, u32& alignment) {
        u32 element = 0;
        std::string found;
        for (const std::string& word : split(text, ' ')) {
            if (word == "=") break;
            if (word.empty() || word == ".align") continue;
            if (isdigit(word[0]))
                alignment = std::stoul(word);
            else if (word[0] == '.')
                element = bytes_of(word);
            else
                found = word;
        }
        const size_t bracket = found.find('[');
        if (bracket == std::string::npos) return {element, found};
        const u32 count = found[bracket + 1] == ']' ? 0 : std::stoul(found.substr(bracket + 1));
        return {element * count, found.substr(0, bracket)};
    }

    void declare_shared(const std::string& text) {
        u32 alignment = 1;
        const auto [bytes, found] = variable(text, alignment);
        program.shared_bytes = (program.shared_bytes + alignment - 1) / alignment * alignment;
        scopes[0][found].constant = true, scopes[0][found].value = program.shared_bytes;
        program.shared_bytes += bytes;
    }

    void declare_registers(const std::string& text) {  // .reg .b32 %r<42> or .reg .pred p
        std::string type, found;
        for (const std::string& word : split(trimmed(text.substr(4)), ' '))
            if (!trimmed(word).empty()) (trimmed(word)[0] == '.' ? type : found) = trimmed(word);
        if (const size_t angle = found.find('<'); angle != std::string::npos)
            widths[found.substr(0, angle)] = bytes_of(type);
        else
            scopes.back()[found] = new_register(bytes_of(type));
    }

    // The compiler's labels are unique; one of inline assembly belongs to its scope.
    std::string label(const std::string& name) const { return name[0] == '$' ? name : name + " " + std::to_string(scopes_begun); }

    void instruction(std::string text) {
        Instruction found;
        found.text = text;
        if (text[0] == '@') {
            found.guarded = true, found.negated = text[1] == '!';
            const size_t first = found.negated ? 2 : 1, end = text.find_first_of(" \t");
            found.guard = operand(text.substr(first, end - first));
            text = trimmed(text.substr(end));
        }
        const size_t end = text.find_first_of(" \t\n");
        const auto words = split(text.substr(0, end), '.');
        const std::string rest = end == std::string::npos ? "" : trimmed(text.substr(end));
        if (words[0] == "bra") {
            branches.emplace_back(program.instructions.size(), label(rest));
        } else if (!rest.empty()) {
            std::string flat;
            const bool nested = words.size() > 2 && words[2] == "bulk";  // brackets around braces; none has an offset
            for (char c : rest)
                if (c != '{' && c != '}' && !(nested && (c == '[' || c == ']'))) flat += c == '|' ? ',' : c;
            for (const std::string& part : split(flat, ',')) found.operands.push_back(operand(part));
        }
        find_action(found, words);
        program.instructions.push_back(found);
    }

    void parameters(const std::string& list) {
        for (const std::string& text : split(list, ',')) {
            if (trimmed(text).empty()) continue;
            u32 alignment = 0;
            const auto [bytes, found] = variable(trimmed(text).substr(6), alignment);  // after .param
            alignment = alignment ? alignment : bytes;
            const u32 place = (program.parameter_bytes + alignment - 1) / alignment * alignment;
            program.parameters.push_back({place, bytes});
            program.parameter_bytes = place + bytes;
            scopes[0][found].constant = true, scopes[0][found].value = place;
        }
    }

    // Shared memory of a fixed size comes first, wherever it is declared.
    void shared_memory() {
        const std::string fixed = "\t.shared", dynamic = ".extern .shared";
        for (size_t found = 0; (found = source.find(fixed, found)) != std::string::npos; found++)
            declare_shared(source.substr(found + fixed.size(), source.find(';', found) - found - fixed.size()));
        if (const size_t found = source.find(dynamic); found != std::string::npos)
            declare_shared(source.substr(found + dynamic.size(), source.find(';', found) - found - dynamic.size()));
    }

    Program parse() {
        const std::string entry = ".entry", most_threads = ".maxntid";
        if (source.find(entry) == std::string::npos) throw Fault("this is no PTX of a kernel");
        const size_t name = source.find(entry) + entry.size(), open = source.find('(', name), close = source.find(')', open);
        program.name = trimmed(source.substr(name, open - name));
        parameters(source.substr(open + 1, close - open - 1));
        if (const size_t most = source.find(most_threads, close); most != std::string::npos)
            program.most_threads = std::stoul(source.substr(most + most_threads.size()));
        shared_memory();
        at = source.find('{', close) + 1;
        while (!scopes.empty()) {
            const std::string text = statement();
            if (text == "{")
                scopes.emplace_back(), scopes_begun++;
            else if (text == "}")
                scopes.pop_back();
            else if (text.back() == ':')
                labels[label(text.substr(0, text.size() - 1))] = program.instructions.size();
            else if (text.rfind(".reg", 0) == 0)
                declare_registers(text);
            else if (text[0] != '.')
                instruction(text);
        }
        for (const auto& [index, label] : branches) program.instructions[index].target = labels.at(label);
        return std::move(program);
    }
};

}  // namespace

Program parse(const std::string& ptx) { return Parser(ptx).parse(); }
