// Device memory: a range of addresses reserved once, and allocations in it with room between them. Each byte has shadow: whether
// it was written, and which blocks of the running launch touched it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace emulator {

struct Allocation {
    unsigned char* begin;
    size_t n_bytes;
    // Bytes that the running launch has loaded from it, and the number of that launch.
    uint64_t n_loaded;
    uint64_t launch;
};

// Bytes that one kernel has loaded from one allocation.
struct Loads {
    uint64_t n_launches, n_bytes;
};

class Memory {
public:
    Memory();

    // While one lives, the memory may be touched. Outside, the host's own accesses end the process if
    // DIFFULEX_EMULATOR_PROTECT is set, as they would with a device address.
    class Open {
    public:
        explicit Open(Memory& memory) : memory(memory) { memory.protect(false); }
        ~Open() { memory.protect(true); }

    private:
        Memory& memory;
    };

    // Null where less than `n_bytes` is free, or less than this is left in one piece.
    unsigned char* allocate(size_t n_bytes);
    bool release(unsigned char* begin);

    size_t total() const { return n_total; }
    size_t free() const { return n_total > n_used ? n_total - n_used : 0; }
    void set_total(size_t n_bytes) { n_total = n_bytes; }

    // Whether the address may be of device memory at all; the quick question.
    bool covers(const void* p) const { return (size_t)((const unsigned char*)p - start) < N_RESERVED; }
    // The allocation around `p`, or null.
    Allocation* find(const void* p) const {
        size_t page = (size_t)((const unsigned char*)p - start) / PAGE;
        Allocation* allocation = pages[page];
        return allocation && (const unsigned char*)p >= allocation->begin && (const unsigned char*)p < allocation->begin + allocation->n_bytes ? allocation : nullptr;
    }
    // Whether all of a range is in one allocation.
    bool holds(const void* p, size_t n_bytes) const;
    // The allocation that begins last before `p`, for messages.
    const Allocation* nearest(const void* p) const;

    // Marks bytes as written, by a copy.
    void mark_written(const void* p, size_t n_bytes);
    // As `mark_written`, for those bytes that are written at the source.
    void copy_marks(const void* to, const void* from, size_t n_bytes);
    // Zeros, written. Whole pages are given back instead, so that a large cache costs nothing until it is used.
    void clear(void* p, size_t n_bytes);

    // The first of `n_bytes` (at most 16, within a page or aligned) that nobody wrote, or -1.
    int first_unwritten(const void* p, int n_bytes) const {
        size_t at = offset(p);
        if (page_written[at / PAGE]) return -1;
        for (int i = 0; i < n_bytes; i++)
            if (!written_shadow[at + i]) return i;
        return -1;
    }
    void mark_access_written(const void* p, int n_bytes) {
        size_t at = offset(p);
        if (!page_written[at / PAGE]) memset(written_shadow + at, 1, n_bytes);
    }
    // Which blocks wrote and read the byte at `p`: see shadow.cpp.
    uint32_t* writers(const void* p) const { return writer_shadow + offset(p); }
    uint32_t* readers(const void* p) const { return reader_shadow + offset(p); }
    // When and by which thread of its block it was written last.
    uint64_t* write_stamps(const void* p) const { return stamp_shadow + offset(p); }
    // Forgets which blocks touched what; needed where their numbers start again.
    void forget_blocks();

private:
    void protect(bool is_protected);
    // Addresses, not memory: what is not touched costs nothing.
    static constexpr size_t N_RESERVED = size_t(32) << 30;
    static constexpr size_t PAGE = 4096;

    size_t offset(const void* p) const { return (size_t)((const unsigned char*)p - start); }
    unsigned char* place(size_t n_room);

    unsigned char* start;
    unsigned char* written_shadow;
    // Pages all of whose bytes are written: their bytes in `written_shadow` say nothing.
    unsigned char* page_written;
    uint32_t *writer_shadow, *reader_shadow;
    uint64_t* stamp_shadow;
    Allocation** pages;
    std::map<unsigned char*, Allocation> live;
    size_t n_total, n_used = 0;
    size_t next = 0;
    bool protects;
    int n_open = 0;
};

}  // namespace emulator
