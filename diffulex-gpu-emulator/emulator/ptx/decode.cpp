#include <algorithm>
#include <cstring>

#include "forms.h"
#include "registers.h"

namespace emulator::ptx {

// The text, and how far it is read.
struct Reader {
    const std::string& text;
    size_t at = 0;
    u32 line = 1;

    bool is_done() const { return at >= text.size(); }
    void skip_to(size_t end) {
        line += (u32)std::count(text.begin() + at, text.begin() + std::min(end, text.size()), '\n');
        at = end;
    }
    // Blanks and comments.
    void skip_blanks() {
        for (;;) {
            size_t next = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
            skip_to(next);
            if (text.compare(at, 2, "//") == 0) skip_to(std::min(text.find('\n', at), text.size()));
            else if (text.compare(at, 2, "/*") == 0) skip_to(std::min(text.find("*/", at), text.size() - 2) + 2);
            else return;
        }
    }
    bool starts_with(const char* word) const { return text.compare(at, strlen(word), word) == 0; }
    // All up to this character, which is skipped.
    std::string_view until(char end) {
        size_t found = text.find(end, at);
        if (found == std::string::npos) throw LoadError{"the text ends too early"};
        std::string_view part(text.data() + at, found - at);
        skip_to(found + 1);
        return trimmed(part);
    }
    std::string_view word() {
        size_t end = std::min(text.find_first_of(" \t\r\n(;", at), text.size());
        std::string_view part(text.data() + at, end - at);
        skip_to(end);
        return part;
    }
};

// Operands of one instruction, taken from the left.
class Operands {
public:
    Operands(std::string_view text, Registers& registers, const std::map<std::string, u32, std::less<>>& parameters) : rest(text), registers(registers), parameters(parameters) {}

    // Whether they are what the form says; fills the instruction, and the label of a branch.
    bool fit(const char* form, Instruction& in, std::string_view& label) {
        in.number = 0;
        u32 n = 0;
        for (const char* letter = form; *letter; letter++) {
            bool begins = letter == form || letter[-1] == '{';
            bool is_operand = *letter != '}' && *letter != '|';
            if (is_operand && !begins && letter[-1] != '|' && !take(',')) return false;
            if (*letter == '|' && !take('|')) {
                in.at[n++] = registers.scratch();
                letter++;
                continue;
            }
            if (*letter == '|') continue;
            if (*letter == '{' || *letter == '}') {
                if (!take(*letter)) return false;
                continue;
            }
            if (!fits(*letter, in, n, label)) return false;
        }
        return trimmed(rest).empty();
    }

private:
    bool take(char c) {
        rest = trimmed(rest);
        if (rest.empty() || rest[0] != c) return false;
        rest.remove_prefix(1);
        return true;
    }
    std::string_view take_word() {
        rest = trimmed(rest);
        size_t end = std::min(rest.find_first_of(",{}|[]+ \t"), rest.size());
        std::string_view word = rest.substr(0, end);
        rest.remove_prefix(end);
        return word;
    }
    bool fits(char letter, Instruction& in, u32& n, std::string_view& label) {
        u64 number;
        switch (letter) {
            case 'A': return address(Width::Double, in, n);
            case 'a': return address(Width::Word, in, n);
            case 'M': return parameter(in);
            case 'L': label = take_word(); return !label.empty();
            case '6': return read_integer(take_word(), number) && number == 16;
            case '#':
                if (!read_integer(take_word(), number)) return false;
                in.number = s64(number);
                return true;
            case 'P': case 'H': case 'W': case 'D': return registers.target(take_word(), Width(letter + 'a' - 'A'), in.at[n++]);
            default: return registers.source(take_word(), Width(letter), in.at[n++]);
        }
    }
    bool displacement(s64& number) {
        if (!take('+')) return true;
        u64 value;
        if (!read_integer(take_word(), value)) return false;
        number += s64(value);
        return true;
    }
    bool address(Width width, Instruction& in, u32& n) {
        // An instruction of two addresses has room for one displacement, which none of ours needs.
        return take('[') && registers.source(take_word(), width, in.at[n++]) && (n_addresses++ == 0 ? displacement(in.number) : in.number == 0) && take(']');
    }
    bool parameter(Instruction& in) {
        if (!take('[')) return false;
        auto found = parameters.find(take_word());
        s64 offset = 0;
        if (found == parameters.end() || !displacement(offset)) return false;
        in.number = s64(found->second) << 32 | offset;
        return take(']');
    }

    std::string_view rest;
    int n_addresses = 0;
    Registers& registers;
    const std::map<std::string, u32, std::less<>>& parameters;
};

// What runs an instruction that is not a branch for the lanes that its guard lets through.
static void run_guarded(Warp& warp, const Instruction& in) {
    const u32* predicate = warp.lanes<u32>(in.guard);
    u32 before = warp.mask, through = 0;
    for_lanes(before, [&](u32 i) { through |= u32((predicate[i] != 0) != in.is_guard_negated) << i; });
    if (!through) return;
    warp.set_mask(through);
    in.guarded(warp, in);
    warp.set_mask(before);
}

class Entry {
public:
    Entry(Reader& reader, Shared shared) : reader(reader), shared(std::move(shared)), registers(*program, this->shared) {}

    std::shared_ptr<const Program> read() {
        program->name = reader.word();
        reader.skip_blanks();
        if (reader.until('(').size()) throw LoadError{"an entry without parameters in brackets"};
        read_parameters(reader.until(')'));
        // Directives that bound the launch are the driver's.
        reader.until('{');
        // Variables of the kernel's own would need places before the first use.
        shared.close();
        program->n_static_shared = shared.n_bytes;
        read_body();
        for (auto& [index, label] : branches) {
            auto found = labels.find(label);
            if (found == labels.end()) throw LoadError{"line " + std::to_string(program->texts[index].first) + ": no label is called " + label};
            program->code[index].target = found->second;
        }
        // A text that does not end in a return.
        add("ret", program->texts.empty() ? 0 : program->texts.back().first);
        return program;
    }

private:
    void read_parameters(std::string_view text) {
        u32 n = 0;
        while (!trimmed(text).empty()) {
            size_t comma = text.find(',');
            std::string_view one = trimmed(text.substr(0, comma));
            text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
            std::string_view name = one.substr(one.find_last_of(" \t") + 1);
            parameters[std::string(name.substr(0, name.find('[')))] = n++;
        }
    }
    void read_body() {
        for (int depth = 1;;) {
            reader.skip_blanks();
            if (reader.is_done()) throw LoadError{"the text ends within " + program->name};
            u32 line = reader.line;
            char c = reader.text[reader.at];
            if (c == '{') {
                reader.skip_to(reader.at + 1);
                registers.open_scope();
                depth++;
            } else if (c == '}') {
                reader.skip_to(reader.at + 1);
                if (--depth == 0) return;
                registers.close_scope();
            } else if (c == '.') {
                read_directive();
            } else if (is_label()) {
                labels[std::string(reader.until(':'))] = (u32)program->code.size();
            } else {
                add(std::string(reader.until(';')), line);
            }
        }
    }
    bool is_label() const {
        size_t end = reader.text.find_first_of(":; \t\n", reader.at);
        return end != std::string::npos && reader.text[end] == ':';
    }
    void read_directive() {
        u32 line = reader.line;
        std::string_view name = reader.word(), rest = reader.until(';');
        try {
            if (name == ".reg") registers.declare(rest);
            else if (name != ".pragma") throw LoadError{"unknown directive " + std::string(name)};
        } catch (const LoadError& error) {
            throw LoadError{"line " + std::to_string(line) + ": " + error.text};
        }
    }
    void add(const std::string& statement, u32 line) {
        Instruction in = {};
        in.guard = NO_GUARD;
        std::string_view text = statement;
        auto refuse = [&](const std::string& why) { throw LoadError{"line " + std::to_string(line) + ": " + why + ": " + statement}; };
        if (text[0] == '@') {
            size_t end = text.find_first_of(" \t");
            std::string_view guard = text.substr(1, end == std::string_view::npos ? end : end - 1);
            in.is_guard_negated = guard[0] == '!';
            if (!registers.target(guard.substr(in.is_guard_negated), Width::Predicate, in.guard)) refuse("the guard is no predicate");
            text = trimmed(text.substr(std::min(end, text.size())));
        }
        size_t end = std::min(text.find_first_of(" \t{"), text.size());
        std::string opcode(text.substr(0, end));
        bool is_branch = opcode == "bra" || opcode == "bra.uni";
        const std::vector<Form>* known = forms().find(is_branch && in.guard != NO_GUARD ? "@bra" : opcode);
        if (!known) refuse("unknown instruction " + opcode);
        std::string_view label;
        auto fits = [&](const Form& form) { return Operands(text.substr(end), registers, parameters).fit(form.operands, in, label); };
        auto form = std::find_if(known->begin(), known->end(), fits);
        if (form == known->end()) refuse("unknown operands of " + opcode);
        in.run = form->run;
        if (in.guard != NO_GUARD && !is_branch) {
            if (opcode == "ret" || opcode == "exit" || opcode.find("sync") != std::string::npos || opcode.compare(0, 4, "bar.") == 0) refuse("a guard on " + opcode);
            in.guarded = in.run;
            in.run = run_guarded;
        }
        if (is_branch) branches.emplace_back((u32)program->code.size(), label);
        program->code.push_back(in);
        program->texts.emplace_back(line, statement);
    }

    Reader& reader;
    Shared shared;
    std::shared_ptr<Program> program = std::make_shared<Program>();
    Registers registers;
    std::map<std::string, u32, std::less<>> parameters;
    std::map<std::string, u32> labels;
    std::vector<std::pair<u32, std::string>> branches;
};

Programs decode(const std::string& text) {
    Reader reader{text};
    Programs programs;
    Shared shared;
    for (;;) {
        reader.skip_blanks();
        if (reader.is_done()) return programs;
        std::string_view word = reader.word();
        reader.skip_blanks();
        if (word == ".version" || word == ".target" || word == ".address_size") {
            reader.skip_to(std::min(text.find('\n', reader.at), text.size()));
        } else if (word == ".shared") {
            shared.declare(reader.until(';'));
        } else if (word == ".global") {
            // Constants that the compiler has put in place: an instruction that uses one finds no such name.
            reader.until(';');
        } else if (word == ".entry") {
            auto program = Entry(reader, shared).read();
            programs[program->name] = program;
        } else if (word != ".visible" && word != ".extern") {
            throw LoadError{"line " + std::to_string(reader.line) + ": unknown directive " + std::string(word)};
        }
    }
}

}  // namespace emulator::ptx
