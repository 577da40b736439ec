// A warp: registers of 32 lanes, which of them run, and where the others wait.
#pragma once
#include <cstring>
#include <vector>

#include "program.h"

namespace emulator::ptx {

// Generic addresses of shared memory; the start is chosen by us, far from any of the host.
constexpr u64 SHARED_WINDOW = u64(1) << 60;
constexpr u64 SHARED_WINDOW_BYTES = u64(1) << 24;

// A copy to shared memory that its thread has not waited for.
struct Flight {
    u32 to;
    u64 from;
    u32 n_bytes;
    u32 group;
};

struct Warp {
    // ~0 for the lanes that run, 0 for the others; and the same as bits.
    alignas(64) u32 active[LANES];
    u32 mask;
    const Instruction* at;
    // The first place at which another lane waits to go on; null asks for a new choice of lanes.
    const Instruction* join;
    unsigned char* registers;
    const Instruction* code;

    const Instruction* places[LANES];
    // Lanes that have not ended; those of them that wait for others at a meeting.
    u32 live, waiting;
    // The first thread's number in its block, and how many of the lanes are threads.
    u32 first_thread, all;
    // The barrier at which all of the warp waits; null while it runs.
    const Instruction* barrier;

    std::vector<Flight> flights[LANES];
    u32 n_groups[LANES];

    template <class T> T* lanes(u32 offset) { return (T*)(registers + offset); }

    void set_mask(u32 bits) {
        mask = bits;
        for (int i = 0; i < LANES; i++) active[i] = 0u - (bits >> i & 1);
    }
    // Some of the running lanes go on at `other`; the rest where the warp is.
    void split(u32 leaving, const Instruction* other) {
        for (u32 bits = leaving; bits; bits &= bits - 1) places[__builtin_ctz(bits)] = other;
        set_mask(mask & ~leaving);
        if (other < join) join = other;
    }
    // Chooses the lanes that are least far, and runs them. False where none can run.
    bool choose();
    // Whether all of `required` are at this instruction. Where they are not, the running lanes wait for them.
    bool meets(const Instruction& in, u32 required);
    // The running lanes end.
    void end();
};

// Calls `f(lane)` for the lanes of `mask`.
template <class F> void for_lanes(u32 mask, F f) {
    for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

// What the instructions need of the running block.
struct Block {
    const Program* program;
    std::vector<std::vector<char>> arguments;
    u32 n_shared;
    // Lanes of atomic instructions begin at one drawn by the launch's seed.
    u32 first_lane;
    // Threads at the barrier, and how many brought a true predicate.
    u32 n_arrived, n_votes;
};
extern Block block;

// The thread of this lane does what comes, for the checks and their messages.
void speak_for(const Warp& warp, u32 lane);

}  // namespace emulator::ptx
