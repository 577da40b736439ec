// The threads of the running block, for those parts of the emulator in which they meet.
#pragma once
#include <cstddef>
#include <vector>

#include "launch.h"

namespace emulator {

// A copy to shared memory on its way: made where it is waited for, so that no use before is right by chance.
struct Copy {
    void* to;
    const void* from;
    bool is_there;
};

struct Thread {
    int id;
    Dimensions index;
    void* stack;
    bool is_done;
    const char* waits_at;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};

typedef void (*Call)(void** arguments);

Thread& running();
Thread& thread(size_t id);
size_t n_threads();
// Gives way to another thread until `wake`, or until it is drawn again.
void wait();
void wake(Thread& thread);
void yield();

// A block with so many warps begins.
void begin_warps(size_t n);

}  // namespace emulator
