// What -fsanitize=thread and -fsanitize=alignment,bounds call in the kernels' objects. Their own libraries are not linked.
#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "shadow.h"
#include "threads.h"

using emulator::Access;
using emulator::check;

static void check_range(const char* p, size_t n_bytes, Access access) {
    for (size_t i = 0; i < n_bytes; i++) check<1>(p + i, access);
}

#pragma GCC visibility push(hidden)
extern "C" {
#define HOOKS(n)                                                               \
    void __tsan_read##n(void* p) { check<n>(p, Access::Load); }                \
    void __tsan_write##n(void* p) { check<n>(p, Access::Store); }              \
    void __tsan_volatile_read##n(void* p) { check<n>(p, Access::Load); }       \
    void __tsan_volatile_write##n(void* p) { check<n>(p, Access::Store); }     \
    /* Structures that are less aligned than they are wide; pointers that should be are for the other sanitizer. */ \
    void __tsan_unaligned_read##n(void* p) { check_range((char*)p, n, Access::Load); } \
    void __tsan_unaligned_write##n(void* p) { check_range((char*)p, n, Access::Store); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(char* p, size_t n_bytes) { check_range(p, n_bytes, Access::Load); }
void __tsan_write_range(char* p, size_t n_bytes) { check_range(p, n_bytes, Access::Store); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
static bool is_running() { return emulator::current_thread() >= 0; }
void __ubsan_handle_type_mismatch_v1(SourceLocation* where, void* p) {
    if (is_running()) emulator::fail("%s:%u: address %p is null or not aligned to its type", where->file, where->line, p);
}
void __ubsan_handle_out_of_bounds(SourceLocation* where, void* index) {
    if (is_running()) emulator::fail("%s:%u: index %td is outside of the array", where->file, where->line, (ptrdiff_t)index);
}
}
