// Where the lanes of a warp meet: shuffles, votes, products of matrices, loads of matrices; and asynchronous copies.
#include "emulator.h"

#include "shadow.h"
#include "threads.h"

namespace emulator {

struct Warp {
    unsigned arrived, mask, ended;
    const char* place;
    void* brought[32];
};
static std::vector<Warp> warps;

void begin_warps(size_t n) { warps.assign(n, Warp{}); }
void end_lane(int id) { warps[id >> 5].ended |= 1u << (id & 31); }

unsigned char* dynamic_shared() { return shared_memory(); }
int lane() { return self->id & 31; }

void meet(unsigned mask, const char* place, void* brought, All all) {
    int base = self->id & ~31, own = lane();
    Warp& warp = warps[base >> 5];
    size_t n_lanes = threads.size() - base < 32 ? threads.size() - base : 32;
    // A full mask is usual in a warp that has fewer threads.
    if (n_lanes < 32) mask &= (1u << n_lanes) - 1;
    if (!(mask >> own & 1)) fail("%s: the lane is not in its own mask", place);
    if (warp.arrived && warp.mask != mask) fail("lanes of a warp meet at %s with different masks", place);
    if (warp.arrived && warp.place != place && strcmp(warp.place, place)) fail("lanes of a warp meet at %s and at %s", place, warp.place);
    if (mask & warp.ended) fail("%s waits for a lane that has ended", place);
    warp.mask = mask;
    warp.place = place;
    warp.brought[own] = brought;
    warp.arrived |= 1u << own;
    if (warp.arrived != mask) {
        self->waits_at = place;
        return wait();
    }
    void* lanes[32];
    for (int i = 0; i < 32; i++) lanes[i] = mask >> i & 1 ? warp.brought[i] : nullptr;
    warp.arrived = 0;
    all(lanes);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && i != own) wake(threads[base + i]);
    // The last to come is not always the first to go on.
    yield();
}

void sync_warp(unsigned mask) {
    static char nothing;
    meet(mask, "__syncwarp", &nothing, [](void**) { barrier_of_warp(self->id >> 5); });
}

void copy_async(void* to, const void* from, bool is_there) {
    if ((uintptr_t)to % 16) fail("the target of an asynchronous copy is not aligned");
    if (!from) fail("the source of an asynchronous copy is null");
    if ((uintptr_t)from % 16) fail("the source of an asynchronous copy is not aligned");
    if (is_there) check<16>(from, Access::Load);
    check_copy_begin(to);
    memset(to, 0xff, 16);
    self->open.push_back({to, from, is_there});
}
void copy_commit() {
    self->groups.push_back(std::move(self->open));
    self->open.clear();
}
void copy_wait(int n_pending) {
    auto& groups = self->groups;
    while ((int)groups.size() > n_pending) {
        for (const Copy& copy : groups.front()) {
            if (copy.is_there) memcpy(copy.to, copy.from, 16);
            else memset(copy.to, 0, 16);
            check_copy_end(copy.to);
        }
        groups.erase(groups.begin());
    }
}

void check_atomic(const void* p, int n_bytes) { n_bytes == 8 ? check<8>(p, Access::Atomic) : check<4>(p, Access::Atomic); }

static float half_of(uint32_t pair, int half) { return __uint_as_float(half ? pair & 0xffff0000u : pair << 16); }

// A value of lane 4 * group + quad, by its row and column; as the comments in device.h have them.
struct Product {
    void* sums;
    const uint32_t *a, *b;
};

template <class T, class Sum, int K> static void multiply(void** lanes, const T (&a)[16][K], const T (&b)[8][K]) {
    for (int l = 0; l < 32; l++) {
        auto* sums = (Sum*)((Product*)lanes[l])->sums;
        for (int e = 0; e < 4; e++) {
            const T *row = a[(l >> 2) + (e >> 1) * 8], *column = b[(l & 3) * 2 + (e & 1)];
            Sum sum = 0;
            for (int k = 0; k < K; k++) sum += (Sum)row[k] * (Sum)column[k];
            sums[e] += sum;
        }
    }
}

template <int K> static void multiply_bytes(void** lanes) {
    int8_t a[16][K], b[8][K];
    for (int l = 0; l < 32; l++) {
        auto& mine = *(Product*)lanes[l];
        int group = l >> 2, quad = l & 3;
        for (int r = 0; r < K / 8; r++) memcpy(&a[group + (r & 1) * 8][quad * 4 + (r >> 1) * 16], &mine.a[r], 4);
        for (int r = 0; r < K / 16; r++) memcpy(&b[group][quad * 4 + r * 16], &mine.b[r], 4);
    }
    multiply<int8_t, int, K>(lanes, a, b);
}

struct Row {
    uint32_t* r;
    const uint16_t* row;
};
static void load_matrices(void** lanes, bool is_transposed) {
    for (int matrix = 0; matrix < 4; matrix++)
        for (int l = 0; l < 32; l++) {
            auto value = [&](int row, int column) { return (uint32_t)((Row*)lanes[matrix * 8 + row])->row[column]; };
            int i = l >> 2, j = (l & 3) * 2;
            ((Row*)lanes[l])->r[matrix] = is_transposed ? value(j, i) | value(j + 1, i) << 16 : value(i, j) | value(i, j + 1) << 16;
        }
}
static void check_row(const void* row) {
    bool is_shared = (size_t)((const unsigned char*)row - shared_memory()) < MAX_SHARED;
    if (!is_shared) fail("a row of a matrix is not in dynamic shared memory");
    check<16>(row, Access::Load);
}

}  // namespace emulator

void mma_bf16(float* d, const uint32_t* a, const uint32_t* b) {
    emulator::Product mine = {d, a, b};
    emulator::meet(~0u, "mma_bf16", &mine, [](void** lanes) {
        float left[16][16], right[8][16];
        for (int l = 0; l < 32; l++) {
            auto& of = *(emulator::Product*)lanes[l];
            int group = l >> 2, k = (l & 3) * 2;
            for (int half = 0; half < 2; half++) {
                for (int r = 0; r < 4; r++) left[group + (r & 1) * 8][k + (r >> 1) * 8 + half] = emulator::half_of(of.a[r], half);
                for (int r = 0; r < 2; r++) right[group][k + r * 8 + half] = emulator::half_of(of.b[r], half);
            }
        }
        emulator::multiply<float, float, 16>(lanes, left, right);
    });
}
void mma_int8(int* d, const uint32_t* a, const uint32_t* b) {
    emulator::Product mine = {d, a, b};
    emulator::meet(~0u, "mma_int8", &mine, emulator::multiply_bytes<32>);
}
void mma_int8_k16(int* d, const uint32_t* a, uint32_t b) {
    emulator::Product mine = {d, a, &b};
    emulator::meet(~0u, "mma_int8_k16", &mine, emulator::multiply_bytes<16>);
}
void load_matrix(uint32_t* r, const void* row) {
    emulator::check_row(row);
    emulator::Row mine = {r, (const uint16_t*)row};
    emulator::meet(~0u, "load_matrix", &mine, [](void** lanes) { emulator::load_matrices(lanes, false); });
}
void load_matrix_transposed(uint32_t* r, const void* row) {
    emulator::check_row(row);
    emulator::Row mine = {r, (const uint16_t*)row};
    emulator::meet(~0u, "load_matrix_transposed", &mine, [](void** lanes) { emulator::load_matrices(lanes, true); });
}

unsigned __ballot_sync(unsigned mask, int predicate) {
    struct Brought {
        int predicate;
        unsigned result;
    } mine = {predicate, 0};
    emulator::meet(mask, "__ballot_sync", &mine, [](void** lanes) {
        unsigned votes = 0;
        for (int i = 0; i < 32; i++)
            if (lanes[i] && ((Brought*)lanes[i])->predicate) votes |= 1u << i;
        for (int i = 0; i < 32; i++)
            if (lanes[i]) ((Brought*)lanes[i])->result = votes;
    });
    return mine.result;
}
