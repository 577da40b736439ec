#include "machine.h"

#include <cstdlib>

#include "threads.h"

namespace emulator {

static uint64_t number_of(const char* variable) {
    const char* text = getenv(variable);
    return text ? strtoull(text, nullptr, 10) : 0;
}

Machine::Machine()
    : fail_launch(number_of("DIFFULEX_EMULATOR_FAIL_LAUNCH")),
      fail_alloc(number_of("DIFFULEX_EMULATOR_FAIL_ALLOC")),
      fail_init(number_of("DIFFULEX_EMULATOR_FAIL_INIT")),
      seed(number_of("DIFFULEX_EMULATOR_SEED")) {}

void Machine::begin_loads(Allocation& allocation) {
    allocation.launch = launch_number;
    allocation.n_loaded = 0;
    loaded.push_back(&allocation);
}

Machine& machine() {
    // Never destroyed: buffers of static life may be freed after it would be.
    static auto* all = new Machine;
    return *all;
}

const std::shared_ptr<Caller>& caller() {
    // Never destroyed: a thread's own variables may free device memory after it would be.
    static thread_local auto* own = new std::shared_ptr<Caller>(new Caller);
    return *own;
}

}  // namespace emulator
