// The device that the stand-in driver shows, and what tests ask of it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fibers.h"
#include "memory.h"

namespace emulator {

// Exported as it is: lib.rs has the same fields.
struct Counters {
    uint64_t kernels;
    uint64_t kernels_of_graphs;
    uint64_t graphs;
    uint64_t uploads, uploaded_bytes, largest_upload;
    uint64_t downloads, downloaded_bytes, largest_download;
    uint64_t device_copies, memsets;
    uint64_t allocations;
};

// A host thread that calls the driver. Counts, planted faults and errors are its own, so that tests that run side by side in
// one process do not see each other's; what a kernel does wrong is the fault of the thread that launched it.
struct Caller {
    Counters counters = {};
    std::map<std::pair<std::string, uint64_t>, Loads> loads;
    // Which of the kernels, allocations and instantiations of graphs to come shall fail: 1 is the next, 0 is none.
    uint64_t fail_launch = 0, fail_alloc = 0, fail_instantiate = 0;
    // What cuInit returns.
    int fail_init = 0;
    // Once a kernel has failed, every call returns this error, as it does with a context of CUDA.
    int error = 0;
    std::string failure;
    // Whether failures are not to be printed.
    bool is_quiet = false;
    void* context = nullptr;
    uint64_t seed = 0, n_launches = 0;
    // Whether the modules that it loads from now on run as their PTX.
    bool runs_ptx;

    Caller();
};

struct Machine {
    Memory memory;
    Stacks stacks;
    // Held by every call of the driver: one thing happens at a time.
    std::mutex mutex;
    // Faults that the environment plants, for the whole process, and the error they leave.
    uint64_t fail_launch, fail_alloc, fail_instantiate, fail_init;
    int error = 0;
    // Whether a kernel's failure ends CUDA for the process, as on a card, and not for the thread that launched it alone.
    bool is_sticky;
    // Whether work runs within the call that enqueues it: as early as a card may, instead of as late.
    bool is_eager;
    uint64_t seed;
    // Kernels run as their PTX instead of as their sources; and how PTX varies where the ISA leaves results open, 0 not at all.
    bool runs_ptx;
    uint64_t jitter;

    Machine();
    // The first load of a launch from an allocation.
    void begin_loads(Allocation& allocation);
    std::vector<Allocation*> loaded;
};

Machine& machine();
// The calling thread's; shared, because its work may be done after it has ended.
const std::shared_ptr<Caller>& caller();

}  // namespace emulator
