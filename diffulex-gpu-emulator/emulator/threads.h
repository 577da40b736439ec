// The threads of the running block, for those parts of the emulator in which they meet.
#pragma once
#include <cstddef>
#include <cstdint>
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

// All threads of the running block, and the one that runs; null between launches.
extern std::vector<Thread> threads;
extern Thread* self;
// Number of the running launch, growing for ever.
extern uint64_t launch_number;

// Identity of the running thread, or -1 between launches.
inline int current_thread() { return self ? self->id : -1; }

// Gives way to another thread until `wake`, or until it is drawn again.
void wait();
void wake(Thread& thread);
void yield();

// A block with so many warps begins; one of its threads ends.
void begin_warps(size_t n);
void end_lane(int id);

}  // namespace emulator
