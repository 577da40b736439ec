#include "launch.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>

#include "machine.h"
#include "shadow.h"
#include "threads.h"

// What emulator.h declares as constants.
extern emulator::Dimensions threadIdx, blockIdx, blockDim, gridDim;
emulator::Dimensions threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

struct Kernel {
    Call call;
    std::vector<int> sizes;
};
static std::map<std::string, Kernel>& kernels() {
    static auto* all = new std::map<std::string, Kernel>;
    return *all;
}
void add_kernel(const char* name, Call call, const int* sizes, int n_arguments) {
    kernels()[name] = {call, std::vector<int>(sizes, sizes + n_arguments)};
}
const std::vector<int>* kernel_arguments(const std::string& name) {
    auto found = kernels().find(name);
    return found == kernels().end() ? nullptr : &found->second.sizes;
}

std::vector<Thread> threads;
Thread* self = nullptr;
uint64_t launch_number = 0;
static std::vector<int> ready;
// Null where no fibers run.
static void* host_stack = nullptr;
static uint64_t random_state;
static int n_waiting, n_done, barrier_line, n_votes, last_votes;
static std::string failure;
static const Kernel* kernel_now;
static void** arguments_now;
static const Launch* launch_now;

unsigned draw(size_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return unsigned((random_state >> 33) % n);
}

// Leaves the running thread for one that is ready, drawn by lot, or for the host where none is, or where the launch has failed.
static void leave() {
    void** from = &self->stack;
    void* to = host_stack;
    if (failure.empty() && !ready.empty()) {
        unsigned pick = draw(ready.size());
        Thread& next = threads[ready[pick]];
        ready[pick] = ready.back();
        ready.pop_back();
        if (&next == self) return;
        self = &next;
        threadIdx = next.index;
        to = next.stack;
    } else {
        self = nullptr;
    }
    emulator_switch(from, to);
}

void fail(const char* format, ...) {
    char text[400], where[200] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (self) snprintf(where, sizeof where, " (%s, block %u,%u,%u, thread %u,%u,%u)", launch_now->kernel, blockIdx.x, blockIdx.y, blockIdx.z, self->index.x, self->index.y, self->index.z);
    if (!host_stack) throw Failed{std::string(text) + where};
    if (failure.empty()) failure = std::string(text) + where;
    leave();
    // The launch has failed, so nobody comes back here.
    __builtin_unreachable();
}

void wait() { leave(); }
void wake(Thread& thread) {
    thread.waits_at = nullptr;
    ready.push_back(thread.id);
}
void yield() {
    ready.push_back(self->id);
    leave();
}

int sync_block_count(int line, bool predicate) {
    if (n_done) fail("the barrier at line %d waits for threads that have ended", line);
    if (n_waiting && line != barrier_line) fail("threads of a block meet at barriers of lines %d and %d", line, barrier_line);
    barrier_line = line;
    n_votes += predicate;
    self->waits_at = "__syncthreads";
    if (++n_waiting < (int)threads.size()) {
        wait();
    } else {
        n_waiting = 0;
        last_votes = n_votes;
        n_votes = 0;
        barrier_of_block();
        for (Thread& thread : threads)
            if (&thread != self) wake(thread);
        self->waits_at = nullptr;
        yield();
    }
    // The next barrier cannot open before this thread has come to it.
    return last_votes;
}
void sync_block(int line) { sync_block_count(line, false); }

static void enter() {
    kernel_now->call(arguments_now);
    if (!self->open.empty() || !self->groups.empty()) fail("a thread ends with asynchronous copies on their way");
    if (n_waiting) fail("a thread ends while others wait at the barrier of line %d", barrier_line);
    self->is_done = true;
    end_lane(self->id);
    n_done++;
    leave();
    __builtin_unreachable();
}

static void run_block() {
    size_t n = (size_t)blockDim.x * blockDim.y * blockDim.z;
    threads.resize(n);
    ready.clear();
    n_waiting = n_done = n_votes = 0;
    begin_block();
    begin_warps((n + 31) / 32);
    for (size_t i = 0; i < n; i++) {
        Thread& thread = threads[i];
        thread.id = (int)i;
        thread.index = {unsigned(i % blockDim.x), unsigned(i / blockDim.x % blockDim.y), unsigned(i / blockDim.x / blockDim.y)};
        thread.is_done = false;
        thread.waits_at = nullptr;
        thread.open.clear();
        thread.groups.clear();
        thread.stack = machine().stacks.fresh(i, enter);
        ready.push_back((int)i);
    }
    unsigned first = draw(n);
    std::swap(ready[first], ready.back());
    ready.pop_back();
    self = &threads[first];
    threadIdx = self->index;
    emulator_switch(&host_stack, self->stack);
    self = nullptr;
    host_stack = nullptr;
    if (!failure.empty() || n_done == (int)n) return;
    auto stuck = std::find_if(threads.begin(), threads.end(), [](const Thread& thread) { return !thread.is_done; });
    self = &*stuck;
    threadIdx = stuck->index;
    char text[400];
    snprintf(text, sizeof text, "deadlock: %d of %zu threads have ended, and the others wait (%s, block %u,%u,%u, thread %u,%u,%u: at %s)", n_done, n, launch_now->kernel, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, stuck->waits_at ? stuck->waits_at : "nothing");
    failure = text;
    self = nullptr;
}

void begin(const Launch& launch) {
    launch_now = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    random_state = launch.seed * 0x9e3779b97f4a7c15u + 1;
    failure.clear();
    launch_number++;
}

void for_blocks(const Launch& launch, const std::function<void()>& run_block) {
    // Blocks by steps that have no factor in common with their number: each comes once, in an order that the seed picks.
    uint64_t n_blocks = (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z, at = draw(n_blocks), step = 1 + draw(n_blocks);
    while (std::gcd(step, n_blocks) != 1) step++;
    for (uint64_t i = 0; i < n_blocks && failure.empty(); i++, at = (at + step) % n_blocks) {
        blockIdx = {unsigned(at % launch.grid.x), unsigned(at / launch.grid.x % launch.grid.y), unsigned(at / launch.grid.x / launch.grid.y)};
        run_block();
    }
}

std::string run(const Launch& launch, void** arguments) {
    auto found = kernels().find(launch.kernel);
    if (found == kernels().end()) return std::string("no kernel is called ") + launch.kernel;
    kernel_now = &found->second;
    arguments_now = arguments;
    begin(launch);
    begin_launch(launch.shared);
    for_blocks(launch, run_block);
    return failure;
}

}  // namespace emulator
