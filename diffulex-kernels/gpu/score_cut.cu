// What top-k, top-p and min-p leave of a row: a threshold on its logits, and the masses that are kept (score.cu has the rest).
//
// Grid: recipes. Block: 1024 threads. Shared memory: `CutRoom`.
#include "score.h"

namespace score {

constexpr int CUT_THREADS = 1024;
constexpr int N_BINS = CUT_THREADS;

struct CutRoom {
    Room room;
    uint32_t low[N_BINS], high[N_BINS];
    uint32_t n_listed;
};

// A coarse measure of it: 32 bins for a factor e. The last one has all that is left.
DEVICE uint32_t bin_of(uint32_t distance, float factor) {
    float bin = __uint_as_float(distance) * factor * 32;
    return bin < N_BINS - 1 ? (uint32_t)bin : N_BINS - 1;
}

// Adds to a sum of 64 bits in two halves: devices have no addition of 64 bits in shared memory.
DEVICE void add_mass(CutRoom* shared, uint32_t bin, uint64_t mass) {
    uint32_t low = (uint32_t)mass, high = (uint32_t)(mass >> 32);
    uint32_t old = atomicAdd(&shared->low[bin], low);
    high += old + low < old;
    if (high) atomicAdd(&shared->high[bin], high);
}

DEVICE void clear_bins(CutRoom* shared) {
    shared->low[threadIdx.x] = 0;
    shared->high[threadIdx.x] = 0;
    __syncthreads();
}
DEVICE uint64_t bin_sum(const CutRoom* shared) {
    return (uint64_t)shared->high[threadIdx.x] << 32 | shared->low[threadIdx.x];
}

// A row that is cut, and the list of its tokens that might be kept.
struct Candidates {
    const float* row;
    const uint32_t* ids;
    uint32_t n;
    float top, factor;
};
DEVICE uint32_t listed_distance(const Candidates& list, uint32_t i) { return distance(list.row[list.ids[i]], list.top); }

// The largest distance of which the tokens before, among those up to `limit` and in `bin`, are worth no more than `target`; a
// token is worth its mass, or 1. Eight bits of it at a time.
DEVICE uint32_t select(const Candidates& list, uint32_t bin, uint32_t limit, bool by_mass, uint64_t target, CutRoom* shared) {
    uint32_t found = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        clear_bins(shared);
        for (uint32_t i = threadIdx.x; i < list.n; i += CUT_THREADS) {
            uint32_t d = listed_distance(list, i);
            bool is_here = d <= limit && bin_of(d, list.factor) == bin && (uint64_t)d >> (shift + 8) == found;
            if (is_here) add_mass(shared, d >> shift & 255, by_mass ? to_mass(expf(-__uint_as_float(d) * list.factor)) : 1);
        }
        __syncthreads();
        Found digit = find(threadIdx.x < 256 ? bin_sum(shared) : 0, target, &shared->room);
        target -= digit.before;
        found = found << 8 | (digit.index == NONE ? 255 : digit.index);
    }
    return found;
}

// Calls `look` with every token that may be drawn and its distance, in tiles whose top is no farther than `farthest` bins. All
// threads of a warp call it together, with -1 where there is no such token.
template <class Look>
DEVICE void each_drawable(Vocabulary vocabulary, float factor, const float* row, int n_out, const Tile* tiles, float top,
                          uint32_t farthest, Look look) {
    constexpr int AT_ONCE = 8;
    for (int first = 0; first < n_out; first += AT_ONCE * CUT_THREADS) {
        float x[AT_ONCE];
        uint32_t there = 0;
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int id = first + i * CUT_THREADS + (int)threadIdx.x;
            bool is_there = has(vocabulary, id) &&
                            bin_of(distance(from_ordered(tiles[id / TILE].top), top), factor) <= farthest;
            x[i] = is_there ? row[id] : 0;
            if (is_there) there |= 1u << i;
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            look(there >> i & 1 ? first + i * CUT_THREADS + (int)threadIdx.x : -1, distance(x[i], top));
    }
}

// The last bin that may have tokens which top-p or, without it, min-p keeps. `count` is that of this thread's bin.
DEVICE uint32_t last_bin(const Recipe& recipe, int n_out, uint32_t count, Room* room) {
    int bin = threadIdx.x;
    float nearest = expf(-(float)bin / 32), farthest = expf(-(float)(bin + 1) / 32);
    bool is_enough = farthest < 0.999f * recipe.min_p;
    if (recipe.top_p < 1) {
        // Whatever the tokens of each bin weigh exactly: up to here is more than top_p of all. The small terms are for roundings
        // and for the last bin, whose tokens are not counted.
        uint64_t total;
        uint64_t least = to_mass(farthest * (float)count), greatest = to_mass(nearest * (float)count);
        least += sum_before(least, room, &total);
        greatest += sum_before(greatest, room, &total);
        double behind = (double)(total - greatest) + (double)n_out * 2e-14 * (double)ONE_MASS;
        is_enough = (double)least * (1 - (double)recipe.top_p) * 0.999 > (double)recipe.top_p * behind;
    }
    uint64_t first = most(is_enough ? N_BINS - bin : 0, room);
    return first ? (uint32_t)(N_BINS - first) : N_BINS - 1;
}

}  // namespace score

using namespace score;

// Where recipes cut. `ids` has room for all tokens of each row; `masses`, [recipes][tiles], begins as zeros and becomes the mass
// that is kept in each tile.
//
// A coarse histogram bounds what can be kept. That is listed, and exact thresholds are selected in the list.
KERNEL __launch_bounds__(CUT_THREADS, 1) score_cut(const Recipe* recipes, const float* logits, int n_out, const Tile* tiles, int n_tiles,
                                                uint32_t* ids, uint64_t* masses, Cut* cuts) {
    DYNAMIC_SHARED(memory);
    CutRoom* shared = (CutRoom*)memory;
    Room* room = &shared->room;
    const Recipe& recipe = recipes[blockIdx.x];  // A copy would take registers that are needed.
    if (recipe.place == NONE || !recipe.is_cut) return;
    const float* row = logits + (int64_t)blockIdx.x * n_out;
    tiles += (int64_t)blockIdx.x * n_tiles;
    ids += (int64_t)blockIdx.x * n_out;
    masses += (int64_t)blockIdx.x * n_tiles;
    uint32_t row_top = top_of(tiles, n_tiles, &Tile::top, room);
    if (!is_finite(row_top)) return;
    float top = from_ordered(row_top), factor = recipe.factor;

    clear_bins(shared);
    if (threadIdx.x == 0) shared->n_listed = 0;
    each_drawable(recipe.vocabulary, factor, row, n_out, tiles, top, N_BINS - 2, [&](int id, uint32_t d) {
        uint32_t bin = bin_of(d, factor);
        if (id >= 0 && bin < N_BINS - 1) atomicAdd(&shared->low[bin], 1u);
    });
    __syncthreads();
    // The bin of the last token that top-k keeps, and the number of those before.
    Found by_count = {0, 0, NONE};
    uint32_t last, count = shared->low[threadIdx.x];
    if (recipe.top_k) {
        by_count = find(count, recipe.top_k - 1, room);
        last = min(by_count.index, (uint32_t)N_BINS - 1);
    } else {
        last = last_bin(recipe, n_out, count, room);
    }
    each_drawable(recipe.vocabulary, factor, row, n_out, tiles, top, last, [&](int id, uint32_t d) {
        bool is_listed = id >= 0 && bin_of(d, factor) <= last;
        uint32_t lanes = __ballot_sync(FULL_WARP, is_listed), lane = threadIdx.x % 32, at = 0;
        if (lane == 0 && lanes) at = atomicAdd(&shared->n_listed, (uint32_t)__popc(lanes));
        at = __shfl_sync(FULL_WARP, at, 0) + __popc(lanes & ((1u << lane) - 1));
        if (is_listed) ids[at] = id;
    });
    __syncthreads();
    Candidates list = {row, ids, shared->n_listed, top, factor};

    uint32_t limit = NONE;
    if (recipe.top_k) limit = select(list, last, NONE, false, recipe.top_k - 1 - by_count.before, shared);
    if (recipe.top_p < 1) {
        clear_bins(shared);
        for (uint32_t i = threadIdx.x; i < list.n; i += CUT_THREADS) {
            uint32_t d = listed_distance(list, i);
            if (d <= limit) add_mass(shared, bin_of(d, factor), to_mass(expf(-__uint_as_float(d) * factor)));
        }
        __syncthreads();
        uint64_t total = 0;
        if (recipe.top_k) total = bin_sum(shared);
        else
            for (int tile = threadIdx.x; tile < n_tiles; tile += CUT_THREADS)
                total += mass_of(tiles[tile].top, tiles[tile].total, top, factor);
        uint64_t target = (uint64_t)((double)recipe.top_p * (double)sum(total, room));
        Found bin = find(bin_sum(shared), target, room);
        if (bin.index != NONE) limit = min(limit, select(list, bin.index, limit, true, target - bin.before, shared));
    }
    if (recipe.min_p > 0) {
        uint64_t farthest = 0;
        for (uint32_t i = threadIdx.x; i < list.n; i += CUT_THREADS) {
            uint32_t d = listed_distance(list, i);
            if (expf(-__uint_as_float(d) * factor) >= recipe.min_p) farthest = max(farthest, (uint64_t)d);
        }
        limit = min(limit, (uint32_t)most(farthest, room));
    }
    uint64_t log_mass = 0;
    for (uint32_t i = threadIdx.x; i < list.n; i += CUT_THREADS) {
        float d = __uint_as_float(listed_distance(list, i)) * factor;
        float weight = expf(-d);
        if (listed_distance(list, i) > limit || weight == 0) continue;
        atomicAdd(&masses[ids[i] / TILE], to_mass(weight));
        log_mass += to_mass(weight * d);
    }
    log_mass = sum(log_mass, room);
    if (threadIdx.x == 0) cuts[blockIdx.x] = {log_mass, limit, 0};
}
EMU_KERNEL(score_cut)
