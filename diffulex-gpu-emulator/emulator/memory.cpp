#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace emulator {

// The device has 4 GiB unless the environment says otherwise: more than any test model needs.
static constexpr size_t DEFAULT_TOTAL = size_t(4) << 30;
// Memory of the driver comes in such pieces.
static constexpr size_t GRANULE = 512;
// Allocations begin this far into a page, so that a kernel cannot rely on more alignment than the driver promises.
static constexpr size_t ALIGNMENT = 256;

static constexpr size_t MAX_POISONED = size_t(64) << 20;

static void* reserve(size_t n_bytes) {
    void* memory = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("emulator: no addresses for device memory");
        abort();
    }
    return memory;
}

Memory::Memory() {
    start = (unsigned char*)reserve(N_RESERVED);
    written_shadow = (unsigned char*)reserve(N_RESERVED);
    page_written = (unsigned char*)reserve(N_RESERVED / PAGE);
    writer_shadow = (uint32_t*)reserve(N_RESERVED * sizeof(uint32_t));
    reader_shadow = (uint32_t*)reserve(N_RESERVED * sizeof(uint32_t));
    stamp_shadow = (uint64_t*)reserve(N_RESERVED * sizeof(uint64_t));
    pages = (Allocation**)reserve(N_RESERVED / PAGE * sizeof(Allocation*));
    const char* total = getenv("DIFFULEX_EMULATOR_MEMORY");
    n_total = total ? strtoull(total, nullptr, 10) : DEFAULT_TOTAL;
    const char* is_protected = getenv("DIFFULEX_EMULATOR_PROTECT");
    protects = is_protected && strcmp(is_protected, "0") != 0;
    if (protects) mprotect(start, N_RESERVED, PROT_NONE);
}

void Memory::protect(bool is_protected) {
    n_open += is_protected ? -1 : 1;
    // The outermost alone: work may run while other work is waited for.
    if (protects && n_open == (is_protected ? 0 : 1)) mprotect(start, N_RESERVED, is_protected ? PROT_NONE : PROT_READ | PROT_WRITE);
}

static size_t rounded(size_t n_bytes, size_t multiple) { return (n_bytes + multiple - 1) / multiple * multiple; }

// Looks for room behind the last allocation first, so that an address that was freed is not soon another's.
unsigned char* Memory::place(size_t n_room) {
    for (int turn = 0; turn < 2; turn++, next = 0) {
        size_t at = next;
        auto behind = live.lower_bound(start + at);
        if (behind != live.begin()) {
            const Allocation& before = std::prev(behind)->second;
            at = std::max(at, rounded(offset(before.begin + before.n_bytes) + 1, PAGE));
        }
        for (;; behind++) {
            size_t end = behind == live.end() ? N_RESERVED : offset(behind->first) / PAGE * PAGE;
            if (at + n_room <= end) {
                next = at + n_room;
                return start + at;
            }
            if (behind == live.end()) break;
            at = rounded(offset(behind->second.begin + behind->second.n_bytes) + 1, PAGE);
        }
    }
    return nullptr;
}

unsigned char* Memory::allocate(size_t n_bytes) {
    size_t n_charged = rounded(n_bytes, GRANULE);
    if (n_bytes > N_RESERVED || n_charged > free()) return nullptr;
    // A page of room behind each, so that an overrun lands in no other.
    size_t n_room = rounded(ALIGNMENT + n_bytes + 1, PAGE) + PAGE;
    unsigned char* page = place(n_room);
    if (!page) return nullptr;
    unsigned char* begin = page + ALIGNMENT;
    auto* allocation = &(live[begin] = Allocation{begin, n_bytes, 0, 0});
    for (size_t at = 0; at < ALIGNMENT + n_bytes; at += PAGE) pages[(offset(page) + at) / PAGE] = allocation;
    n_used += n_charged;
    // Not a number in every format. A larger allocation is a cache or a pool, whose pages are not worth touching for this.
    if (n_bytes <= MAX_POISONED) {
        Open open(*this);
        memset(begin, 0xff, n_bytes);
    }
    return begin;
}

bool Memory::release(unsigned char* begin) {
    auto found = live.find(begin);
    if (found == live.end()) return false;
    size_t n_bytes = found->second.n_bytes;
    unsigned char* page = begin - ALIGNMENT;
    size_t n_pages = (ALIGNMENT + n_bytes + PAGE - 1) / PAGE;
    for (size_t i = 0; i < n_pages; i++) pages[offset(page) / PAGE + i] = nullptr;
    // Gives the memory back; whoever gets the addresses next finds shadow of zeros.
    madvise(page, n_pages * PAGE, MADV_DONTNEED);
    memset(page_written + offset(page) / PAGE, 0, n_pages);
    madvise(written_shadow + offset(page), n_pages * PAGE, MADV_DONTNEED);
    madvise(writer_shadow + offset(page), n_pages * PAGE * sizeof(uint32_t), MADV_DONTNEED);
    madvise(reader_shadow + offset(page), n_pages * PAGE * sizeof(uint32_t), MADV_DONTNEED);
    madvise(stamp_shadow + offset(page), n_pages * PAGE * sizeof(uint64_t), MADV_DONTNEED);
    n_used -= rounded(n_bytes, GRANULE);
    live.erase(found);
    return true;
}

bool Memory::holds(const void* p, size_t n_bytes) const {
    if (!covers(p)) return false;
    const Allocation* allocation = find(p);
    return allocation && n_bytes <= allocation->n_bytes - (size_t)((const unsigned char*)p - allocation->begin);
}

const Allocation* Memory::nearest(const void* p) const {
    auto behind = live.upper_bound((unsigned char*)p);
    return behind == live.begin() ? nullptr : &std::prev(behind)->second;
}

void Memory::mark_written(const void* p, size_t n_bytes) {
    size_t at = offset(p), end = at + n_bytes;
    size_t first_page = rounded(at, PAGE) / PAGE, end_page = end / PAGE;
    if (first_page >= end_page) {
        memset(written_shadow + at, 1, n_bytes);
        return;
    }
    memset(written_shadow + at, 1, first_page * PAGE - at);
    memset(page_written + first_page, 1, end_page - first_page);
    memset(written_shadow + end_page * PAGE, 1, end - end_page * PAGE);
}

void Memory::copy_marks(const void* to, const void* from, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        bool is_written = first_unwritten((const unsigned char*)from + i, 1) < 0;
        // Bytes that lose their mark are not followed: a page that was written once stays so.
        if (is_written) mark_access_written((const unsigned char*)to + i, 1);
    }
}

void Memory::clear(void* p, size_t n_bytes) {
    mark_written(p, n_bytes);
    size_t at = offset(p), end = at + n_bytes;
    size_t first = rounded(at, PAGE), last = end / PAGE * PAGE;
    if (first >= last) {
        memset(p, 0, n_bytes);
        return;
    }
    memset(p, 0, first - at);
    madvise(start + first, last - first, MADV_DONTNEED);
    memset(start + last, 0, end - last);
}

void Memory::forget_blocks() {
    madvise(writer_shadow, N_RESERVED * sizeof(uint32_t), MADV_DONTNEED);
    madvise(reader_shadow, N_RESERVED * sizeof(uint32_t), MADV_DONTNEED);
}

}  // namespace emulator
