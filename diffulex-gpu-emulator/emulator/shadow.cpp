#include "shadow.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include "launch.h"
#include "machine.h"
#include "threads.h"

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
static uint64_t warp_barriers[32] = {};

// Time and thread of the last access to a byte, and what it was. Several threads may read, or change atomically, the same byte:
// then their warp stands in the thread's place, or that they are of several warps.
typedef uint64_t Stamp;
constexpr uint64_t COMING = 0x8000, ATOMICALLY = 0x4000, SEVERAL = 0x2000, OF_WARP = 0x1000, WHO = 0x3fff;

static Stamp stamp_of(uint64_t who) { return now << 16 | who; }
static uint64_t time_of(Stamp stamp) { return stamp >> 16; }

// Whether a barrier stands between that access and one that `thread` makes now, or they are of the same thread.
static bool is_ordered(Stamp stamp, unsigned thread) {
    uint64_t who = stamp & WHO;
    if (time_of(stamp) <= block_barrier || who == thread) return true;
    bool is_of_warp = (who & ~OF_WARP) == thread >> 5 && who & OF_WARP;
    return (is_of_warp || who >> 5 == thread >> 5) && time_of(stamp) <= warp_barriers[thread >> 5];
}
// The stamp of an access now, together with those of before that no barrier has ordered.
static Stamp joined(Stamp stamp, unsigned thread) {
    if (is_ordered(stamp, thread)) return stamp_of(thread);
    uint64_t who = stamp & WHO, warp = thread >> 5;
    bool same_warp = who == (OF_WARP | warp) || who >> 5 == warp;
    return stamp_of(same_warp ? OF_WARP | warp : SEVERAL);
}
static const char* name_of(Stamp stamp, char (&text)[40]) {
    uint64_t who = stamp & WHO;
    if (who & SEVERAL) snprintf(text, sizeof text, "threads of several warps");
    else if (who & OF_WARP) snprintf(text, sizeof text, "threads of warp %u", unsigned(who & 31));
    else snprintf(text, sizeof text, "thread %u", unsigned(who));
    return text;
}

alignas(1024) static unsigned char dynamic_memory[MAX_SHARED];
static unsigned n_dynamic = 0;

// Stamps of each byte of a range: the last write, the last read.
struct Stamps {
    std::vector<Stamp> writes, reads;
};
static Stamps dynamic_stamps = {std::vector<Stamp>(MAX_SHARED), std::vector<Stamp>(MAX_SHARED)}, static_stamps;

unsigned char* shared_memory() { return dynamic_memory; }

static bool is_dynamic(const unsigned char* p) { return (size_t)(p - dynamic_memory) < MAX_SHARED; }
static bool is_static(const unsigned char* p) { return p >= __start_emulator_shared && p < __stop_emulator_shared; }
// Blocks are numbered through all launches, in 31 bits; the first number of a launch stands for "several blocks of it".
static uint32_t first_block = 0, this_block = 0;

// The machine's, at hand.
static Memory* memory = nullptr;
static const Stacks* stacks = nullptr;

void begin_launch(unsigned n_shared) {
    memory = &machine().memory;
    stacks = &machine().stacks;
    n_dynamic = n_shared;
    static_stamps.writes.resize(__stop_emulator_shared - __start_emulator_shared);
    static_stamps.reads.resize(static_stamps.writes.size());
    if (this_block > 0x70000000u) {
        memory->forget_blocks();
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

void barrier_of_warp(int warp) { warp_barriers[warp] = now++; }

static const char* verb(Access access) {
    return access == Access::Load ? "read" : access == Access::Store ? "written" : "changed atomically";
}

// What is wrong with an access to shared memory, byte by byte; where nothing is, the bytes' stamps are set.
static void look_at_shared(Stamps& stamps, long at, int n_bytes, Access access, const char* where) {
    unsigned thread = (unsigned)current_thread();
    char name[40];
    for (long byte = at; byte < at + n_bytes; byte++) {
        Stamp &write = stamps.writes[byte], &read = stamps.reads[byte];
        bool is_written = time_of(write) > block_start;
        if (is_written && write & COMING) fail("%sshared byte %ld is %s while %s copies to it", where, byte, verb(access), name_of(write, name));
        if (access != Access::Store && !is_written) fail("%sshared byte %ld is read, and nobody wrote it", where, byte);
        bool both_atomic = access == Access::Atomic && write & ATOMICALLY;
        if (!both_atomic && !is_ordered(write, thread))
            fail("race: %sshared byte %ld is %s, and was %s by %s with no barrier between", where, byte, verb(access), write & ATOMICALLY ? "changed" : "written", name_of(write, name));
        if (access != Access::Load && !is_ordered(read, thread))
            fail("race: %sshared byte %ld is %s, and was read by %s with no barrier between", where, byte, verb(access), name_of(read, name));
        if (access == Access::Load) read = joined(read, thread);
        else if (access == Access::Store) write = stamp_of(thread);
        else write = (both_atomic ? joined(write, thread) : stamp_of(thread)) | ATOMICALLY;
    }
}

// The usual case of `look_at_shared` without its messages: every write is of before the last barrier, or of the same warp before
// its last one, or the thread's own. False where somebody has to look closer.
template <int N> static bool is_plainly_right(Stamps& stamps, long at, Access access) {
    unsigned thread = (unsigned)current_thread();
    Stamp *write = &stamps.writes[at], *read = &stamps.reads[at];
    Stamp fresh = (block_start + 1) << 16, settled = (block_barrier + 1) << 16, settled_in_warp = (warp_barriers[thread >> 5] + 1) << 16;
    Stamp mine = stamp_of(thread), of_warp = stamp_of(OF_WARP | thread >> 5), of_several = stamp_of(SEVERAL);
    // Stamps without flags of threads of this warp.
    auto is_before = [&](Stamp stamp) {
        return (stamp < settled) | ((stamp < settled_in_warp) & ((stamp & 0xffff) >> 5 == thread >> 5)) | ((stamp & 0xffff) == thread);
    };
    if (access == Access::Load) {
        for (int i = 0; i < N; i++)
            if ((write[i] < fresh) | ((write[i] & COMING) != 0) | !is_before(write[i])) return false;
        for (int i = 0; i < N; i++) {
            if ((read[i] == of_several) | (read[i] == of_warp)) continue;
            read[i] = is_before(read[i]) ? mine : joined(read[i], thread);
        }
        return true;
    }
    for (int i = 0; i < N; i++)
        if (((write[i] & COMING) != 0) | !is_before(write[i]) | !is_before(read[i])) return false;
    for (int i = 0; i < N; i++) write[i] = mine;
    return true;
}

template <int N> static void check_shared(const unsigned char* p, Access access) {
    bool dynamic = is_dynamic(p);
    long at = dynamic ? p - dynamic_memory : p - __start_emulator_shared;
    const char* where = dynamic ? "" : "static ";
    if (dynamic && at + N > (long)n_dynamic) fail("access of %d bytes at %ld of %u bytes of shared memory", N, at, n_dynamic);
    if ((uintptr_t)p % N) fail("access of %d bytes at %s%ld of shared memory is not aligned", N, where, at);
    Stamps& stamps = dynamic ? dynamic_stamps : static_stamps;
    if (access != Access::Atomic && is_plainly_right<N>(stamps, at, access)) return;
    look_at_shared(stamps, at, N, access, where);
}

// Device memory: between the blocks of a launch nothing orders accesses but atomics.
constexpr uint32_t ATOMIC = 0x80000000u;

template <int N> static void check_device(const unsigned char* p, Access access) {
    Allocation* allocation = memory->find(p);
    if (!allocation || p + N > allocation->begin + allocation->n_bytes) {
        const Allocation* near = memory->nearest(p);
        if (near) fail("device memory is %s out of bounds: %d bytes at %td of an allocation of %zu bytes", verb(access), N, p - near->begin, near->n_bytes);
        fail("device memory is %s where nothing is allocated", verb(access));
    }
    long at = p - allocation->begin;
    if ((uintptr_t)p % N) fail("access of %d bytes at %ld of an allocation is not aligned", N, at);
    if (access != Access::Store) {
        int unwritten = memory->first_unwritten(p, N);
        if (unwritten >= 0) fail("byte %ld of an allocation of %zu bytes is read, and nobody wrote it", at + unwritten, allocation->n_bytes);
    }
    uint32_t *writer = memory->writers(p), *reader = memory->readers(p);
    bool is_clean = true;
    for (int i = 0; i < N; i++) is_clean &= (writer[i] < first_block) | (writer[i] == this_block);
    // Within the block, barriers order accesses. What was read before it is written by another thread is not looked for.
    uint64_t* stamps = memory->write_stamps(p);
    unsigned thread = (unsigned)current_thread();
    for (int i = 0; i < N; i++) {
        if ((writer[i] & ~ATOMIC) != this_block || is_ordered(stamps[i], thread)) continue;
        if (access == Access::Atomic && writer[i] & ATOMIC) continue;
        char name[40];
        fail("race: byte %ld of an allocation of %zu bytes is %s, and was %s by %s with no barrier between", at + i, allocation->n_bytes, verb(access), writer[i] & ATOMIC ? "changed" : "written", name_of(stamps[i], name));
    }
    if (access != Access::Load)
        for (int i = 0; i < N; i++)
            stamps[i] = (writer[i] & ~ATOMIC) == this_block && access == Access::Atomic ? joined(stamps[i], thread) : stamp_of(thread);
    if (access == Access::Load && is_clean) {
        for (int i = 0; i < N; i++) reader[i] = (reader[i] < first_block) | (reader[i] == this_block) ? this_block : first_block;
    } else {
        for (int i = 0; i < N; i++) {
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
    }
    if (access == Access::Load) {
        if (allocation->launch != launch_number) machine().begin_loads(*allocation);
        allocation->n_loaded += (uint64_t)N;
    } else {
        memory->mark_access_written(p, N);
    }
}

template <int N> void check(const void* at, Access access) {
    if (!WITH_CHECKS || current_thread() < 0) return;
    auto* p = (const unsigned char*)at;
    if (stacks->contains(p)) return;
    if (is_dynamic(p) || is_static(p)) return check_shared<N>(p, access);
    if (memory->covers(p)) return check_device<N>(p, access);
    bool is_ours = p >= __ehdr_start && p < _end;
    if (!is_ours) fail("address %p is %s, which is neither device memory nor shared memory", at, verb(access));
}
template void check<1>(const void* p, Access access);
template void check<2>(const void* p, Access access);
template void check<4>(const void* p, Access access);
template void check<8>(const void* p, Access access);
template void check<16>(const void* p, Access access);

void check_copy_begin(const void* p) {
    if (!WITH_CHECKS) return;
    if (!is_dynamic((const unsigned char*)p)) fail("the target of an asynchronous copy is not dynamic shared memory");
    check<16>(p, Access::Store);
    Stamp* writes = &dynamic_stamps.writes[(const unsigned char*)p - dynamic_memory];
    for (int i = 0; i < 16; i++) writes[i] |= COMING;
}

void check_copy_end(const void* p) {
    if (!WITH_CHECKS) return;
    Stamp* writes = &dynamic_stamps.writes[(const unsigned char*)p - dynamic_memory];
    for (int i = 0; i < 16; i++) writes[i] = stamp_of((uint64_t)current_thread());
}

}  // namespace emulator
