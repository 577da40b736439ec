#include "shadow.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include "launch.h"
#include "machine.h"

extern unsigned char __start_emulator_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_emulator_shared[] __attribute__((weak, visibility("hidden")));
// The bounds of this library's image: its constants are not device memory, but kernels may read them.
extern unsigned char __ehdr_start[] __attribute__((visibility("hidden")));
extern unsigned char _end[] __attribute__((visibility("hidden")));

namespace emulator {

// Without the compiler's calls nobody knows what was written, so nothing can be checked.
#if !EMULATOR_WITH_CHECKS
constexpr bool WITH_CHECKS = false;
#else
constexpr bool WITH_CHECKS = true;
#endif

// Time goes on by one at every barrier, and never back. An access at time t of another thread came before this one if t is not
// after the last barrier that both passed. So nothing is cleared between blocks: what they left is older than their end.
static uint64_t now = 1, block_barrier = 0, block_start = 0;
static std::vector<uint64_t> warp_barrier(32, 0);

// Time and thread of the last access. Several threads may read, or change atomically, the same byte: then their warp stands in
// the thread's place, or that they are of several warps.
class Stamp {
public:
    Stamp() : bits(0) {}
    Stamp(uint64_t time, unsigned who, bool is_atomic, bool is_coming)
        : bits(time << 16 | (uint64_t)is_coming << 15 | (uint64_t)is_atomic << 14 | who) {}
    uint64_t time() const { return bits >> 16; }
    bool is_coming() const { return bits >> 15 & 1; }
    bool is_atomic() const { return bits >> 14 & 1; }
    unsigned who() const { return bits & 0x3fff; }

    static constexpr unsigned WARP = 0x1000, SEVERAL = 0x2000;

    // Whether nothing orders that access before one that `thread` makes now.
    bool races_with(unsigned thread) const {
        if (time() <= block_barrier || who() == thread) return false;
        bool same_warp = who() < WARP ? who() >> 5 == thread >> 5 : who() < SEVERAL && (who() & 31) == thread >> 5;
        return !same_warp || time() > warp_barrier[thread >> 5];
    }
    // The stamp of this access and those of before that are as recent.
    Stamp joined_by(unsigned thread, bool is_atomic) const {
        unsigned who = thread;
        if (races_with(thread)) {
            bool same_warp = this->who() < WARP ? this->who() >> 5 == thread >> 5 : this->who() < SEVERAL && (this->who() & 31) == thread >> 5;
            who = same_warp ? WARP | thread >> 5 : SEVERAL;
        }
        return Stamp(now, who, is_atomic, false);
    }
    const char* name(char (&text)[40]) const {
        if (who() < WARP) snprintf(text, sizeof text, "thread %u", who());
        else if (who() < SEVERAL) snprintf(text, sizeof text, "threads of warp %u", who() & 31);
        else snprintf(text, sizeof text, "threads of several warps");
        return text;
    }

private:
    uint64_t bits;
};

struct SharedByte {
    Stamp write, read;
};

alignas(1024) static unsigned char dynamic_memory[MAX_SHARED];
static unsigned n_dynamic = 0;
static std::vector<SharedByte> dynamic_shadow(MAX_SHARED), static_shadow;

unsigned char* shared_memory() { return dynamic_memory; }

static bool is_dynamic(const unsigned char* p) { return (size_t)(p - dynamic_memory) < MAX_SHARED; }
static bool is_static(const unsigned char* p) { return p >= __start_emulator_shared && p < __stop_emulator_shared; }
static SharedByte* shared_shadow(const unsigned char* p) {
    return is_dynamic(p) ? &dynamic_shadow[p - dynamic_memory] : is_static(p) ? &static_shadow[p - __start_emulator_shared] : nullptr;
}

// Blocks are numbered through all launches, in 31 bits; the first number of a launch stands for "several blocks of it".
static uint32_t first_block = 0, this_block = 0;

void begin_launch(unsigned n_shared) {
    n_dynamic = n_shared;
    static_shadow.resize(__stop_emulator_shared - __start_emulator_shared);
    if (this_block > 0x70000000u) {
        machine().memory.forget_blocks();
        this_block = 0;
    }
    first_block = ++this_block;
}

void begin_block() {
    this_block++;
    block_start = block_barrier = now++;
    // Not a number in every format, for objects without checks.
    memset(dynamic_memory, 0xff, n_dynamic);
    memset(__start_emulator_shared, 0xff, __stop_emulator_shared - __start_emulator_shared);
}

void barrier_of_block() { block_barrier = now++; }

void barrier_of_warp(int warp) { warp_barrier[warp] = now++; }

static const char* verb(Access access) {
    return access == Access::Load ? "read" : access == Access::Store ? "written" : "changed atomically";
}

static void check_shared(const unsigned char* p, int n_bytes, Access access) {
    bool dynamic = is_dynamic(p);
    long at = dynamic ? p - dynamic_memory : p - __start_emulator_shared;
    const char* where = dynamic ? "" : "static ";
    if (dynamic && at + n_bytes > (long)n_dynamic) fail("access of %d bytes at %ld of %u bytes of shared memory", n_bytes, at, n_dynamic);
    if ((uintptr_t)p % n_bytes) fail("access of %d bytes at %s%ld of shared memory is not aligned", n_bytes, where, at);
    unsigned thread = (unsigned)current_thread();
    SharedByte* byte = shared_shadow(p);
    char name[40];
    for (int i = 0; i < n_bytes; i++, byte++) {
        bool is_written = byte->write.time() > block_start;
        if (is_written && byte->write.is_coming())
            fail("%sshared byte %ld is %s while %s copies to it", where, at + i, verb(access), byte->write.name(name));
        if (access != Access::Store && !is_written) fail("%sshared byte %ld is read, and nobody wrote it", where, at + i);
        bool both_atomic = access == Access::Atomic && byte->write.is_atomic();
        if (!both_atomic && byte->write.races_with(thread))
            fail("race: %sshared byte %ld is %s, and was %s by %s with no barrier between", where, at + i, verb(access), byte->write.is_atomic() ? "changed" : "written", byte->write.name(name));
        if (access != Access::Load && byte->read.races_with(thread))
            fail("race: %sshared byte %ld is %s, and was read by %s with no barrier between", where, at + i, verb(access), byte->read.name(name));
        if (access == Access::Load) byte->read = byte->read.joined_by(thread, false);
        else byte->write = both_atomic ? byte->write.joined_by(thread, true) : Stamp(now, thread, access == Access::Atomic, false);
    }
}

// Device memory: between the blocks of a launch nothing orders accesses but atomics.
constexpr uint32_t ATOMIC = 0x80000000u;

static void check_device(const unsigned char* p, int n_bytes, Access access) {
    Memory& memory = machine().memory;
    Allocation* allocation = memory.find(p);
    if (!allocation || p + n_bytes > allocation->begin + allocation->n_bytes) {
        const Allocation* near = memory.nearest(p);
        if (near) fail("device memory is %s out of bounds: %d bytes at %td of an allocation of %zu bytes", verb(access), n_bytes, p - near->begin, near->n_bytes);
        fail("device memory is %s where nothing is allocated", verb(access));
    }
    long at = p - allocation->begin;
    if ((uintptr_t)p % n_bytes) fail("access of %d bytes at %ld of an allocation is not aligned", n_bytes, at);
    if (access != Access::Store) {
        int unwritten = memory.first_unwritten(p, n_bytes);
        if (unwritten >= 0) fail("byte %ld of an allocation of %zu bytes is read, and nobody wrote it", at + unwritten, allocation->n_bytes);
    }
    uint32_t *writer = memory.writers(p), *reader = memory.readers(p);
    for (int i = 0; i < n_bytes; i++) {
        uint32_t by = writer[i] & ~ATOMIC;
        bool both_atomic = access == Access::Atomic && writer[i] & ATOMIC;
        if (by >= first_block && by != this_block && !both_atomic)
            fail("race between blocks: byte %ld of an allocation of %zu bytes is %s, and was written by another block", at + i, allocation->n_bytes, verb(access));
        if (access != Access::Load && reader[i] >= first_block && reader[i] != this_block)
            fail("race between blocks: byte %ld of an allocation of %zu bytes is %s, and was read by another block", at + i, allocation->n_bytes, verb(access));
        if (access == Access::Load) reader[i] = reader[i] >= first_block && reader[i] != this_block ? first_block : this_block;
        else if (access == Access::Store) writer[i] = this_block;
        else writer[i] = (both_atomic && by >= first_block && by != this_block ? first_block : this_block) | ATOMIC;
    }
    if (access == Access::Load) {
        if (allocation->launch != launch_number()) machine().begin_loads(*allocation);
        allocation->n_loaded += (uint64_t)n_bytes;
    } else {
        memory.mark_access_written(p, n_bytes);
    }
}

void check(const void* at, int n_bytes, Access access) {
    if (!WITH_CHECKS || current_thread() < 0) return;
    auto* p = (const unsigned char*)at;
    if (is_dynamic(p) || is_static(p)) return check_shared(p, n_bytes, access);
    if (machine().memory.covers(p)) return check_device(p, n_bytes, access);
    if (machine().stacks.contains(p)) return;
    bool is_ours = p >= __ehdr_start && p < _end;
    if (!is_ours) fail("address %p is %s, which is neither device memory nor shared memory", at, verb(access));
}

void check_copy_begin(const void* p) {
    if (!WITH_CHECKS) return;
    SharedByte* byte = shared_shadow((const unsigned char*)p);
    if (!byte) fail("the target of an asynchronous copy is not shared memory");
    check(p, 16, Access::Store);
    for (int i = 0; i < 16; i++) byte[i].write = Stamp(now, (unsigned)current_thread(), false, true);
}

void check_copy_end(const void* p) {
    if (!WITH_CHECKS) return;
    SharedByte* byte = shared_shadow((const unsigned char*)p);
    for (int i = 0; i < 16; i++) byte[i].write = Stamp(now, (unsigned)current_thread(), false, false);
}

}  // namespace emulator
