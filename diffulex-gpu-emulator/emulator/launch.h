// One launch: its blocks one after the other, their threads as fibers in an order drawn by seed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace emulator {

struct Dimensions {
    unsigned x, y, z;
};

struct Launch {
    const char* kernel;
    Dimensions grid, block;
    unsigned shared;
    uint64_t seed;
};

// Sizes of a kernel's arguments in bytes; null where there is no such kernel.
const std::vector<int>* kernel_arguments(const std::string& name);

// Runs it. Returns an empty text, or what the kernel did wrong.
std::string run(const Launch& launch, void** arguments);

// What both ways to run a kernel begin with; then its blocks in an order drawn by the seed.
void begin(const Launch& launch);
void for_blocks(const Launch& launch, const std::function<void()>& run_block);
// A number below `n`, drawn by the launch's seed.
unsigned draw(size_t n);

// Thrown by `fail` where no fibers run.
struct Failed {
    std::string text;
};

// Records what is wrong, ends the running thread, and with it the launch.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

}  // namespace emulator
