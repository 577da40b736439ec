// What the names in a kernel's text stand for: registers, constants, special registers, shared variables, parameters.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program.h"

namespace emulator::ptx {

struct Register {
    u32 at;
    Width width;
};

// Variables of the module's text in shared memory; those without a size lie behind the others.
struct Shared {
    std::map<std::string, u32, std::less<>> offsets;
    std::vector<std::string> dynamic;
    u32 n_bytes = 0;

    // The text behind `.shared`, such as `.align 16 .b8 name[32]`.
    void declare(std::string_view text);
    // Places those without a size.
    void close();
};

// Bytes of a type such as `.b32`; 0 where there is none of this name.
u32 size_of_type(std::string_view type);

class Registers {
public:
    Registers(Program& program, const Shared& shared) : program(program), shared(shared), scopes(1) {}

    void open_scope() { scopes.emplace_back(); }
    void close_scope() { scopes.pop_back(); }
    // The text behind `.reg`, such as `.b32 %r<5>` or `.pred %p, %q`.
    void declare(std::string_view text);

    // Null where the name stands for no register.
    const Register* find(std::string_view name) const;
    // A register, a special one, a constant or an address of a shared variable, of this width. False where it is none.
    bool source(std::string_view word, Width width, u32& at);
    bool target(std::string_view word, Width width, u32& at) const;
    // A register that nobody reads.
    u32 scratch() { return allocate(Width::Predicate); }

private:
    struct Range {
        std::vector<Register> registers;
    };
    struct Scope {
        std::unordered_map<std::string, Register> names;
        std::unordered_map<std::string, Range> ranges;
    };
    u32 allocate(Width width);
    u32 constant(Width width, u64 bits);

    Program& program;
    const Shared& shared;
    std::vector<Scope> scopes;
    std::map<std::pair<Width, u64>, u32> constants;
};

// An integer as PTX writes it. False where the word is none.
bool read_integer(std::string_view word, u64& value);
std::string_view trimmed(std::string_view text);

}  // namespace emulator::ptx
