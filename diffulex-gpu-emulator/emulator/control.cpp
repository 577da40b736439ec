// What tests ask of the emulator beside the driver's calls. Each concerns the calling thread's work alone, but for the memory.
#include <cstdio>
#include <cstring>

#include "machine.h"
#include "streams.h"

using namespace emulator;

// Exported as it is: lib.rs has the same fields.
struct LoadsOfKernel {
    char kernel[64];
    uint64_t address, n_launches, n_bytes;
};

#pragma GCC visibility push(default)
extern "C" {

void emulator_counters(Counters* counters) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    *counters = caller()->counters;
}
void emulator_reset_counters() {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    caller()->counters = {};
    caller()->loads.clear();
}
// Fills what there is room for; returns how many there are.
size_t emulator_loads(LoadsOfKernel* to, size_t room) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    size_t n = 0;
    for (auto& [key, loads] : caller()->loads) {
        if (n < room) {
            snprintf(to[n].kernel, sizeof to[n].kernel, "%s", key.first.c_str());
            to[n].address = key.second;
            to[n].n_launches = loads.n_launches;
            to[n].n_bytes = loads.n_bytes;
        }
        n++;
    }
    return n;
}
// The n-th from now fails; 0 takes the fault back.
void emulator_fail_launch(uint64_t n) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    caller()->fail_launch = n;
}
void emulator_fail_alloc(uint64_t n) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    caller()->fail_alloc = n;
}
// cuInit returns this error; 0 takes the fault back.
void emulator_fail_init(int error) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    caller()->fail_init = error;
}
void emulator_fail_instantiate(uint64_t n) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    caller()->fail_instantiate = n;
}
void emulator_set_memory(uint64_t n_bytes) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    machine().memory.set_total(n_bytes);
}
void emulator_set_seed(uint64_t seed) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    caller()->seed = seed;
    caller()->n_launches = 0;
}
// Whether modules that this thread loads from now on run as their PTX.
void emulator_run_ptx(bool runs_ptx) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    caller()->runs_ptx = runs_ptx;
}
// How results vary that the ISA leaves open, for the whole process; 0 not at all.
void emulator_set_jitter(uint64_t seed) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    machine().jitter = seed;
}
void emulator_set_quiet(bool is_quiet) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    caller()->is_quiet = is_quiet;
}
// Makes the context work again after an error.
void emulator_heal() {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    caller()->error = machine().error = 0;
    caller()->failure.clear();
}
// What the last failed kernel did wrong; empty where none has.
void emulator_failure(char* text, size_t room) {
    std::lock_guard<std::mutex> guard(machine().mutex);
    streams().drain_all();
    snprintf(text, room, "%s", caller()->failure.c_str());
}
}
