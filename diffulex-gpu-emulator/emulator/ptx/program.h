// A kernel's PTX, decoded once: each instruction is a function over the lanes of a warp and the places of its operands.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace emulator::ptx {

typedef uint16_t u16;
typedef int16_t s16;
typedef uint32_t u32;
typedef int32_t s32;
typedef uint64_t u64;
typedef int64_t s64;

constexpr int LANES = 32;
// Those of mma.sync.m16n8k16: 4 of D, 4 of A, 2 of B, 4 of C.
constexpr int MAX_OPERANDS = 14;
constexpr u32 NO_GUARD = ~0u;

struct Warp;
struct Instruction;
typedef void (*Run)(Warp& warp, const Instruction& in);

struct Instruction {
    Run run;
    // Offsets of the operands' lanes in the warp's registers; a constant has a register of its own.
    u32 at[MAX_OPERANDS];
    // What the text has in place of a register: an address's displacement, a number of groups, a barrier.
    s64 number;
    // Of a branch.
    u32 target;
    // The predicate's register of an instruction that has a guard, and what runs for the lanes that it lets through.
    u32 guard;
    bool is_guard_negated;
    Run guarded;
};

// Widths of registers: predicates and 16 bits take 32 in each lane.
enum class Width : char { Predicate = 'p', Half = 'h', Word = 'w', Double = 'd' };
inline u32 bytes_of(Width width) { return LANES * (width == Width::Double ? 8 : 4); }

struct Constant {
    u32 at;
    Width width;
    u64 bits;
};

enum class Special { TidX, TidY, TidZ, NtidX, NtidY, NtidZ, CtaidX, CtaidY, CtaidZ, NctaidX, NctaidY, NctaidZ, LaneId };

struct Program {
    std::string name;
    std::vector<Instruction> code;
    // Of each instruction: its line in the text, and itself.
    std::vector<std::pair<u32, std::string>> texts;
    std::vector<Constant> constants;
    std::map<Special, u32> specials;
    // Of a warp's registers.
    u32 n_bytes = 0;
    // Shared memory that the text itself declares; that of the launch follows.
    u32 n_static_shared = 0;
};

typedef std::map<std::string, std::shared_ptr<const Program>> Programs;

struct LoadError {
    std::string text;
};

// All kernels of a module. Throws a LoadError that names the line and what this engine does not know.
Programs decode(const std::string& text);

}  // namespace emulator::ptx
