#include "fibers.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

// By hand, because swapcontext makes a system call for the signal mask, and a launch switches at every meeting of every thread.
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch,@function
emulator_switch:
    endbr64
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    retq
.size emulator_switch,.-emulator_switch
.section .note.GNU-stack,"",@progbits
.text
)");

namespace emulator {

constexpr size_t GUARD = 4096;

void Stacks::reserve() {
    void* memory = mmap(nullptr, STACK * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("emulator: no memory for stacks");
        abort();
    }
    start = (unsigned char*)memory;
    // An overflow ends the process instead of changing another thread's variables.
    for (size_t i = 0; i < MAX_THREADS; i++) mprotect(start + i * STACK, GUARD, PROT_NONE);
}

void* Stacks::fresh(size_t index, void (*entry)()) {
    if (!start) reserve();
    auto* top = (uintptr_t*)(start + (index + 1) * STACK);
    // At a function's entry the stack pointer is 8 below a multiple of 16, where a call has left the return address.
    *--top = 0;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++) *--top = 0;
    return top;
}

}  // namespace emulator
