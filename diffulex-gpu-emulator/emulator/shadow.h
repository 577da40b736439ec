// Who touched which byte last, and whether a barrier stands between.
#pragma once
#include <cstddef>
#include <cstdint>

namespace emulator {

enum class Access { Load, Store, Atomic };

// The most dynamic shared memory of a block: what the least of the supported devices has.
constexpr size_t MAX_SHARED = 99 << 10;

unsigned char* shared_memory();

// A launch begins, with this many bytes of dynamic shared memory; its blocks begin; one of its barriers opens.
void begin_launch(unsigned n_shared);
void begin_block();
void barrier_of_block();
void barrier_of_warp(int warp);

// Fails the launch where the access breaks a rule. Does nothing between launches and for addresses of the thread's own.
template <int N_BYTES> void check(const void* p, Access access);
// `p` is the target of a copy of 16 bytes that is on its way; and it has come.
void check_copy_begin(const void* p);
void check_copy_end(const void* p);

}  // namespace emulator
