// Stacks, and the switch from one to another.
#pragma once
#include <cstddef>

namespace emulator {

// Saves the callee-saved registers on the stack, leaves its pointer in `*from`, and goes on at `to`.
extern "C" void emulator_switch(void** from, void* to);

// Stacks for the threads of a block, kept from launch to launch.
class Stacks {
public:
    // The stack pointer of a fiber that has not run: its first switch enters `entry`, which must not return.
    void* fresh(size_t index, void (*entry)());
    // Whether `p` lies on any of them.
    bool contains(const void* p) const { return start && (size_t)((const unsigned char*)p - start) < STACK * MAX_THREADS; }

private:
    // Instrumented kernels hold their register arrays on the stack: some 16 KB for the largest fragments.
    static constexpr size_t STACK = 128 << 10;
    static constexpr size_t MAX_THREADS = 1024;

    void reserve();
    unsigned char* start = nullptr;
};

}  // namespace emulator
