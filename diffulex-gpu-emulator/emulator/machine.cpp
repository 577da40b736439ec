#include "machine.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "threads.h"

namespace emulator {

static uint64_t number_of(const char* variable) {
    const char* text = getenv(variable);
    return text ? strtoull(text, nullptr, 10) : 0;
}

static bool is_ptx_asked_for() {
    const char* kernels = getenv("DIFFULEX_EMULATOR_KERNELS");
    if (!kernels || !strcmp(kernels, "source")) return false;
    if (!strcmp(kernels, "ptx")) return true;
    fprintf(stderr, "emulator: DIFFULEX_EMULATOR_KERNELS is %s, which is neither source nor ptx\n", kernels);
    abort();
}

Machine::Machine()
    : fail_launch(number_of("DIFFULEX_EMULATOR_FAIL_LAUNCH")),
      fail_alloc(number_of("DIFFULEX_EMULATOR_FAIL_ALLOC")),
      fail_instantiate(number_of("DIFFULEX_EMULATOR_FAIL_INSTANTIATE")),
      fail_init(number_of("DIFFULEX_EMULATOR_FAIL_INIT")),
      is_sticky(number_of("DIFFULEX_EMULATOR_STICKY") != 0),
      is_eager(number_of("DIFFULEX_EMULATOR_EAGER") != 0),
      seed(number_of("DIFFULEX_EMULATOR_SEED")),
      runs_ptx(is_ptx_asked_for()),
      jitter(number_of("DIFFULEX_EMULATOR_JITTER")) {}

Caller::Caller() : runs_ptx(machine().runs_ptx) {}

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
