// Scoring: from rows of logits to a token for each, and what strategies and clients ask about it (kernels/score.rs has the
// contract). Up to 64 recipes at a time; the logits of recipe r are row r, [n_out] f32, and those of unguided rows lie behind.
//
// Launches, in order, with the grid (x, y) and the threads of a block:
//   score_settle   (tiles, recipes), 256  soft cap, the strategy's temperature and guidance, in place; where one is asked for
//   score_change   (changes / 256), 256   changes of single tokens' logits; where there are some
//   score_tiles    (tiles, recipes), 256  each tile of 2048 tokens in a few numbers
//   score_cut      (recipes), 1024        what top-k, top-p and min-p leave; where a recipe cuts
//   score_classes  (tiles, recipes), 256  twice: the likeliest token of each class, then sums; where classes are asked for
//   score_finish   (recipes), 256         joins the tiles, draws, writes the record and the answers
//   score_condition (width / 256, recipes), 256  rows that condition canvases, from mean embeddings
//
// A row's result depends on that row alone. Sums of floats are made in the order of ids. Where threads add in any order, they
// add integers: a mass is 2^40 times a token's weight, which is relative to 1 at the likeliest token, so that sums and draws are
// exact. Weights below 2^-41 have no mass: 10^6 of them are 5e-7 of the total.
//
// Shared memory is that of `Room`, in score_cut of `CutRoom`, in score_finish of `FinishRoom`, and in score_classes a table of 2048
// sums.
#include "block.h"

namespace score {

constexpr uint32_t NONE = 0xffffffffu;
// Tokens of a tile.
constexpr int TILE = 2048;
constexpr int THREADS = 256;
constexpr int PER_THREAD = TILE / THREADS;
constexpr int CUT_THREADS = 1024;
// Likeliest tokens that are reported, at most (MAX_TOP_K).
constexpr int MAX_RANKED = 8;
constexpr float ONE_MASS = 1099511627776.0f;  // 2^40
// Classes of which a block keeps a table of its own.
constexpr uint32_t MAX_SHARED_CLASSES = 2048;

// As score.rs writes it.
struct Recipe {
    const uint32_t* class_of;  // Class of each token; null: none are asked for.
    uint64_t uniform;          // 2^64 times the number that draws.
    uint32_t place;            // Of the record; NONE: there is no recipe.
    uint32_t n_drawable;       // Ids below this may be drawn,
    uint32_t mask;             // but for this one.
    uint32_t is_greedy;
    float factor;       // 1 / temperature; 1 where greedy.
    float temperature;  // The strategy's.
    uint32_t unguided;  // Row of logits; NONE: no guidance.
    float guidance;     // Its scale and 1.
    uint32_t score;     // See Score.
    uint32_t n_ranked;
    uint32_t n_likeliest;
    uint32_t is_cut;
    uint32_t top_k;  // 0: no such cut.
    float top_p;     // 1: no such cut.
    float min_p;     // 0: no such cut.
    uint32_t given;  // The token, if it was drawn elsewhere; NONE: it is drawn.
    uint32_t first_asked, n_asked;  // Tokens whose log-probabilities are asked for.
    uint32_t n_classes;
    uint32_t first_answer;  // Word of the output: log-probabilities, then classes of three words each.
};

enum Score : uint32_t { PROBABILITY, MARGIN, NEGATIVE_ENTROPY };

struct Record {
    uint32_t is_scored;
    uint32_t token;
    float confidence;
    float score;
    uint32_t likeliest[MAX_RANKED];
    float probabilities[MAX_RANKED];
};

struct Change {
    uint32_t row;  // NONE: padding.
    uint32_t token;
    float bias, repetition, penalty;
};

// A tile of a row in short. Tops are in integers' order (`ordered`), 0 where there is no token; sums are relative to them.
struct Tile {
    uint32_t top, second;  // Of what the token comes from: all in greedy rows, elsewhere what may be drawn.
    float total;           // Sum of exp(d), d = (x - top) factor.
    float log_total;       // Sum of exp(d) d.
    uint32_t whole_top;    // Of all tokens.
    float whole_total;
};

// What a cut leaves.
struct Cut {
    uint64_t log_mass;  // Sum of exp(-d) d over what is kept, times 2^40.
    uint32_t limit;     // Tokens are kept whose `distance` is at most this.
    uint32_t padding;
};

// A place in a list of sums.
struct Found {
    uint64_t before, size;
    uint32_t index;  // NONE: all sums together do not exceed the target.
};

struct Room {
    uint64_t of_warps[32];
    Found found;
};

struct FinishRoom {
    Room room;
    uint64_t likeliest[MAX_RANKED];
};

constexpr int N_BINS = CUT_THREADS;

struct CutRoom {
    Room room;
    uint32_t low[N_BINS], high[N_BINS];
    uint32_t n_listed;
};

// Integers in the order of numbers; anything that is no number is above all.
DEVICE uint32_t ordered(float x) { return x != x ? NONE : to_ordered(x); }
// A logit and its token, by which it is ranked: ties go to the highest id.
DEVICE uint64_t ranked_key(uint32_t ordered, int id) { return (uint64_t)ordered << 32 | (uint32_t)id; }
DEVICE float logit_of(uint64_t key) { return from_ordered((uint32_t)(key >> 32)); }
// From one of `ordered`; not of none, infinities and what is no number.
DEVICE bool is_finite(uint32_t top) { return top > ordered(-INFINITE) && top < ordered(INFINITE); }
DEVICE bool is_drawable(const Recipe& recipe, int id) { return (uint32_t)id < recipe.n_drawable && (uint32_t)id != recipe.mask; }

DEVICE uint64_t to_mass(float weight) { return __float2ull_rn(weight * ONE_MASS); }
DEVICE float weight_of(float x, float top, float factor) { return expf((x - top) * factor); }

template <class T> DEVICE T sum(T x, Room* room) {
    return block::reduce(x, (T*)room->of_warps, [](T a, T b) { return a + b; });
}
DEVICE uint64_t most(uint64_t x, Room* room) {
    return block::reduce(x, room->of_warps, [](uint64_t a, uint64_t b) { return a < b ? b : a; });
}

// The sum over the threads before this one; `total` is that of all.
DEVICE uint64_t sum_before(uint64_t x, Room* room, uint64_t* total) {
    uint64_t up_to_here = x;
    for (int n = 1; n < 32; n *= 2) {
        uint64_t other = __shfl_up_sync(FULL_WARP, up_to_here, n);
        if ((int)threadIdx.x % 32 >= n) up_to_here += other;
    }
    // The words may still be read from the sum before.
    __syncthreads();
    if (threadIdx.x % 32 == 31) room->of_warps[threadIdx.x / 32] = up_to_here;
    __syncthreads();
    uint64_t before = up_to_here - x;
    *total = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        if (warp == (int)threadIdx.x / 32) before += *total;
        *total += room->of_warps[warp];
    }
    return before;
}

// The thread in whose part of all sums `target` lies; where there is none, everything came before.
DEVICE Found find(uint64_t x, uint64_t target, Room* room) {
    uint64_t total;
    uint64_t before = sum_before(x, room, &total);
    if (threadIdx.x == 0 && target >= total) room->found = {total, 0, NONE};
    if (before <= target && target < before + x) room->found = {before, x, threadIdx.x};
    __syncthreads();
    return room->found;
}

// The largest top of a row's tiles.
DEVICE uint32_t top_of(const Tile* tiles, int n_tiles, uint32_t Tile::*top, Room* room) {
    uint32_t largest = 0;
    for (int tile = threadIdx.x; tile < n_tiles; tile += blockDim.x) largest = max(largest, tiles[tile].*top);
    return (uint32_t)most(largest, room);
}

// A sum over a tile, which is relative to its top, as a mass relative to that of the row.
DEVICE uint64_t mass_of(uint32_t tile_top, float total, float top, float factor) {
    if (!is_finite(tile_top)) return 0;
    return __double2ull_rn((double)total * (double)weight_of(from_ordered(tile_top), top, factor) * (double)ONE_MASS);
}

// ---- Cuts.

// How far a logit is below the top, as an integer in the order of distances.
DEVICE uint32_t distance(float x, float top) { return __float_as_uint(top - x); }
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
DEVICE void each_drawable(const Recipe& recipe, const float* row, int n_out, const Tile* tiles, float top, uint32_t farthest, Look look) {
    constexpr int AT_ONCE = 8;
    for (int first = 0; first < n_out; first += AT_ONCE * CUT_THREADS) {
        float x[AT_ONCE];
        bool is_there[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int id = first + i * CUT_THREADS + (int)threadIdx.x;
            is_there[i] = id < n_out && is_drawable(recipe, id) &&
                          bin_of(distance(from_ordered(tiles[id / TILE].top), top), recipe.factor) <= farthest;
            x[i] = is_there[i] ? row[id] : 0;
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            look(is_there[i] ? first + i * CUT_THREADS + (int)threadIdx.x : -1, distance(x[i], top));
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

KERNEL __launch_bounds__(THREADS) score_settle(const Recipe* recipes, float* logits, int n_out, float soft_cap) {
    const Recipe recipe = recipes[blockIdx.y];
    bool is_asked = soft_cap > 0 || recipe.temperature != 1 || recipe.unguided != NONE;
    if (recipe.place == NONE || !is_asked) return;
    float* row = logits + (int64_t)blockIdx.y * n_out;
    const float* unguided = logits + (int64_t)recipe.unguided * n_out;
    auto tempered = [&](float x) { return (soft_cap > 0 ? soft_cap * tanhf(x / soft_cap) : x) / recipe.temperature; };
    for (int i = 0; i < PER_THREAD; i++) {
        int id = (int)blockIdx.x * TILE + i * THREADS + (int)threadIdx.x;
        if (id >= n_out) return;
        float x = tempered(row[id]);
        if (recipe.unguided != NONE) {
            float base = tempered(unguided[id]);
            x = base + recipe.guidance * (x - base);
        }
        row[id] = x;
    }
}
EMU_KERNEL(score_settle)

KERNEL __launch_bounds__(THREADS) score_change(const Change* changes, int n_changes, float* logits, int n_out) {
    int index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= n_changes || changes[index].row == NONE) return;
    Change change = changes[index];
    float* logit = logits + (int64_t)change.row * n_out + change.token;
    float biased = *logit + change.bias;
    *logit = (biased > 0 ? biased / change.repetition : biased * change.repetition) - change.penalty;
}
EMU_KERNEL(score_change)

// `tiles` is [recipes][tiles], `ranked` [recipes][tiles][MAX_RANKED] with the likeliest that may be drawn.
KERNEL __launch_bounds__(THREADS, 4) score_tiles(const Recipe* recipes, const float* logits, int n_out, Tile* tiles, uint64_t* ranked) {
    DYNAMIC_SHARED(memory);
    Room* room = (Room*)memory;
    const Recipe recipe = recipes[blockIdx.y];
    if (recipe.place == NONE) return;
    const float* row = logits + (int64_t)blockIdx.y * n_out;
    int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    int first_id = (int)blockIdx.x * TILE + (int)threadIdx.x;
    uint32_t x[PER_THREAD];           // Logits, `ordered`.
    uint32_t all = 0, drawable = 0;  // Sets of them, by bits.
    #pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int id = first_id + i * THREADS;
        bool is_there = id < n_out;
        x[i] = is_there ? ordered(row[id]) : 0;
        if (is_there) all |= 1u << i;
        if (is_there && is_drawable(recipe, id)) drawable |= 1u << i;
    }
    uint32_t source = recipe.is_greedy ? all : drawable;
    // The largest key of some tokens below another; 0 where there is none.
    auto largest = [&](uint32_t set, uint64_t below) {
        uint64_t most_here = 0;
        #pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            uint64_t key = ranked_key(x[i], first_id + i * THREADS);
            if ((set >> i & 1) && key < below && key > most_here) most_here = key;
        }
        return most(most_here, room);
    };
    uint64_t below = ~(uint64_t)0, first = 0;
    for (uint32_t rank = 0; rank < recipe.n_ranked; rank++) {
        below = largest(drawable, below);
        if (rank == 0) first = below;
        if (threadIdx.x == 0) ranked[index * MAX_RANKED + rank] = below;
    }
    bool is_whole = recipe.n_asked > 0 || recipe.n_classes > 0;
    uint64_t top = recipe.is_greedy ? largest(all, ~(uint64_t)0) : first;
    uint64_t second = recipe.is_greedy && recipe.score == MARGIN ? largest(all, top) : 0;
    uint64_t whole_top = is_whole && !recipe.is_greedy ? largest(all, ~(uint64_t)0) : top;
    // Sums of exp(d) and of exp(d) d.
    auto sums = [&](uint32_t set, float top) {
        float2 sums = {0, 0};
        #pragma unroll
        for (int i = 0; i < PER_THREAD; i++) {
            float d = (from_ordered(x[i]) - top) * recipe.factor, weight = expf(d);
            bool counts = (set >> i & 1) && weight > 0;
            sums.x += counts ? weight : 0;
            sums.y += counts ? weight * d : 0;
        }
        return sums;
    };
    Tile tile = {(uint32_t)(top >> 32), (uint32_t)(second >> 32), 0, 0, (uint32_t)(whole_top >> 32), 0};
    if (is_finite(tile.top)) {
        float2 mine = sums(source, logit_of(top));
        tile.total = sum(mine.x, room);
        if (recipe.score == NEGATIVE_ENTROPY) tile.log_total = sum(mine.y, room);
    }
    if (is_whole && is_finite(tile.whole_top)) tile.whole_total = sum(sums(all, logit_of(whole_top)).x, room);
    if (threadIdx.x == 0) tiles[index] = tile;
}
EMU_KERNEL(score_tiles)

// Where recipes cut. `ids` has room for all tokens of each row; `masses`, [recipes][tiles], begins as zeros and becomes the mass
// that is kept in each tile.
//
// A coarse histogram bounds what can be kept. That is listed, and exact thresholds are selected in the list.
KERNEL __launch_bounds__(CUT_THREADS) score_cut(const Recipe* recipes, const float* logits, int n_out, const Tile* tiles, int n_tiles,
                                                uint32_t* ids, uint64_t* masses, Cut* cuts) {
    DYNAMIC_SHARED(memory);
    CutRoom* shared = (CutRoom*)memory;
    Room* room = &shared->room;
    const Recipe& recipe = recipes[blockIdx.x];  // Not a copy: registers are scarce.
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
    each_drawable(recipe, row, n_out, tiles, top, N_BINS - 2, [&](int id, uint32_t d) {
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
    each_drawable(recipe, row, n_out, tiles, top, last, [&](int id, uint32_t d) {
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

// The likeliest tokens of classes, where `sums` is null, else sums over classes of masses relative to them. `tops` and `sums`,
// [recipes][stride], begin as zeros.
KERNEL __launch_bounds__(THREADS) score_classes(const Recipe* recipes, const float* logits, int n_out, uint64_t* tops, uint64_t* sums,
                                                int stride) {
    DYNAMIC_SHARED(memory);
    uint64_t* table = (uint64_t*)memory;
    const Recipe recipe = recipes[blockIdx.y];
    if (recipe.place == NONE || !recipe.class_of) return;
    const float* row = logits + (int64_t)blockIdx.y * n_out;
    tops += (int64_t)blockIdx.y * stride;
    uint64_t* all = sums ? sums + (int64_t)blockIdx.y * stride : tops;
    // Few classes are met often.
    bool is_shared = recipe.n_classes <= MAX_SHARED_CLASSES;
    if (is_shared) {
        for (uint32_t c = threadIdx.x; c < recipe.n_classes; c += THREADS) table[c] = 0;
        __syncthreads();
    }
    for (int i = 0; i < PER_THREAD; i++) {
        int id = (int)blockIdx.x * TILE + i * THREADS + (int)threadIdx.x;
        if (id >= n_out) break;
        uint32_t c = recipe.class_of[id];
        uint64_t* at = is_shared ? table + c : all + c;
        if (!sums) {
            atomicMax(at, ranked_key(ordered(row[id]), id));
        } else if (float top = logit_of(tops[c]); row[id] > -INFINITE) {
            atomicAdd(at, to_mass(weight_of(row[id], top, recipe.factor)));
        }
    }
    if (!is_shared) return;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < recipe.n_classes; c += THREADS) {
        if (table[c] == 0) continue;
        if (sums) atomicAdd(&all[c], table[c]);
        else atomicMax(&all[c], table[c]);
    }
}
EMU_KERNEL(score_classes)

// Writes record `place` of `output`, and the answers about tokens and classes.
KERNEL __launch_bounds__(THREADS, 2) score_finish(const Recipe* recipes, const float* logits, int n_out, const Tile* tiles, int n_tiles,
                                               const uint64_t* ranked, const uint64_t* masses, const Cut* cuts, const uint64_t* class_tops,
                                               const uint64_t* class_sums, int class_stride, const uint32_t* asked, uint32_t* output) {
    DYNAMIC_SHARED(memory);
    FinishRoom* shared = (FinishRoom*)memory;
    Room* room = &shared->room;
    const Recipe recipe = recipes[blockIdx.x];
    if (recipe.place == NONE) return;
    const float* row = logits + (int64_t)blockIdx.x * n_out;
    tiles += (int64_t)blockIdx.x * n_tiles;
    ranked += (int64_t)blockIdx.x * n_tiles * MAX_RANKED;
    masses += (int64_t)blockIdx.x * n_tiles;
    Record* record = (Record*)output + recipe.place;
    float factor = recipe.factor;

    // The likeliest, and whether there is anything to score.
    uint64_t below = ~(uint64_t)0, likeliest = 0;
    for (uint32_t rank = 0; rank < recipe.n_ranked; rank++) {
        uint64_t key = 0;
        for (int i = threadIdx.x; i < n_tiles * MAX_RANKED; i += THREADS)
            if ((uint32_t)i % MAX_RANKED < recipe.n_ranked && ranked[i] < below) key = max(key, ranked[i]);
        below = most(key, room);
        if (rank == 0) likeliest = below;
        if (threadIdx.x == 0) shared->likeliest[rank] = below;
    }
    bool is_whole = recipe.n_asked > 0 || recipe.n_classes > 0;
    uint32_t row_top = top_of(tiles, n_tiles, &Tile::top, room);
    uint32_t row_whole_top = is_whole ? top_of(tiles, n_tiles, &Tile::whole_top, room) : row_top;
    if (!is_finite(row_top) || !is_finite(row_whole_top) || likeliest == 0) {
        if (threadIdx.x == 0) record->is_scored = 0;
        return;
    }
    float top = from_ordered(row_top), whole_top = from_ordered(row_whole_top);
    uint32_t limit = recipe.is_cut ? cuts[blockIdx.x].limit : NONE;
    auto is_kept = [&](float x) { return distance(x, top) <= limit; };

    // Sums over the row.
    auto mass_of_tile = [&](int tile) {
        return recipe.is_cut ? masses[tile] : mass_of(tiles[tile].top, tiles[tile].total, top, factor);
    };
    uint64_t mass = 0, whole_mass = 0;
    double log_total = 0;
    for (int tile = threadIdx.x; tile < n_tiles; tile += THREADS) {
        mass += mass_of_tile(tile);
        if (is_whole) whole_mass += mass_of(tiles[tile].whole_top, tiles[tile].whole_total, whole_top, factor);
        if (recipe.score == NEGATIVE_ENTROPY && is_finite(tiles[tile].top)) {
            float d = (from_ordered(tiles[tile].top) - top) * factor, share = expf(d);
            if (share > 0) log_total += (double)share * ((double)tiles[tile].log_total + (double)tiles[tile].total * (double)d);
        }
    }
    mass = sum(mass, room);
    whole_mass = is_whole && !recipe.is_greedy ? sum(whole_mass, room) : mass;
    double total = (double)mass / (double)ONE_MASS;
    auto probability = [&](float x) { return is_kept(x) ? (float)((double)weight_of(x, top, factor) / total) : 0.0f; };

    // The token.
    uint32_t token = recipe.is_greedy ? (uint32_t)likeliest : recipe.given;
    if (token == NONE) {
        uint64_t target = __umul64hi(recipe.uniform, mass), before = 0;
        Found found = {0, 0, NONE};
        int first = -THREADS;
        while (found.index == NONE) {
            first += THREADS;
            int tile = first + (int)threadIdx.x;
            found = find(tile < n_tiles ? mass_of_tile(tile) : 0, target - before, room);
            if (found.index == NONE) before += found.before;
        }
        // Within the tile: relative to its own top, as its sum was, unless it is cut.
        uint64_t left = target - before - found.before;
        first = (first + (int)found.index) * TILE + (int)threadIdx.x * PER_THREAD;
        float reference = recipe.is_cut ? top : from_ordered(tiles[first / TILE].top);
        auto mass_at = [&](int id) {
            bool counts = id < n_out && is_drawable(recipe, id) && is_kept(row[id]);
            return counts ? to_mass(weight_of(row[id], reference, factor)) : 0;
        };
        uint64_t mine = 0;
        for (int i = 0; i < PER_THREAD; i++) mine += mass_at(first + i);
        if (!recipe.is_cut) {
            uint64_t of_tile = sum(mine, room);
            left = min((uint64_t)((double)left / (double)found.size * (double)of_tile), of_tile - 1);
        }
        Found thread = find(mine, left, room);
        // Each has read it.
        __syncthreads();
        if (threadIdx.x == thread.index) {
            left -= thread.before;
            int id = first;
            for (uint64_t here = mass_at(id); left >= here; here = mass_at(++id)) left -= here;
            room->found.index = (uint32_t)id;
        }
        __syncthreads();
        token = room->found.index;
    }

    // Scores of more than one token.
    float of_second = 0;
    if (recipe.score == MARGIN && recipe.is_greedy) {
        uint64_t best = 0, second = 0;
        for (int tile = threadIdx.x; tile < n_tiles; tile += THREADS) best = max(best, (uint64_t)tiles[tile].top << 32 | (uint32_t)tile);
        best = most(best, room);
        for (int tile = threadIdx.x; tile < n_tiles; tile += THREADS)
            second = max(second, (uint64_t)(tile == (int)(uint32_t)best ? tiles[tile].second : tiles[tile].top));
        second = most(second, room);
        of_second = second ? probability(from_ordered((uint32_t)second)) : 0;
    }
    if (recipe.score == NEGATIVE_ENTROPY)
        log_total = recipe.is_cut ? -(double)cuts[blockIdx.x].log_mass / (double)mass : sum(log_total, room) / total;

    if (threadIdx.x == 0) {
        bool can_be = recipe.is_greedy || is_drawable(recipe, (int)token);
        float confidence = can_be ? probability(row[token]) : 0, score = confidence, ranks[2] = {0, 0};
        for (uint32_t rank = 0; rank < MAX_RANKED; rank++) {
            uint64_t key = rank < recipe.n_ranked ? shared->likeliest[rank] : 0;
            bool is_there = key != 0 && is_kept(logit_of(key)), is_reported = is_there && rank < recipe.n_likeliest;
            float p = is_there ? probability(logit_of(key)) : 0;
            record->likeliest[rank] = is_reported ? (uint32_t)key : 0;
            record->probabilities[rank] = is_reported ? p : 0;
            if (rank == 0) ranks[0] = p;
            if (rank == 1) ranks[1] = p;
        }
        if (recipe.score == MARGIN) score = recipe.is_greedy ? probability(top) - of_second : ranks[0] - ranks[1];
        if (recipe.score == NEGATIVE_ENTROPY) score = (float)(log_total - log(total));
        record->is_scored = 1;
        record->token = token;
        record->confidence = confidence;
        record->score = score;
    }

    if (!is_whole) return;
    float log_whole = (float)log((double)whole_mass / (double)ONE_MASS);
    auto log_probability = [&](float x) { return (x - whole_top) * factor - log_whole; };
    float* answers = (float*)output + recipe.first_answer;
    for (uint32_t i = threadIdx.x; i < recipe.n_asked; i += THREADS) answers[i] = log_probability(row[asked[recipe.first_asked + i]]);
    for (uint32_t c = threadIdx.x; c < recipe.n_classes; c += THREADS) {
        int64_t at = (int64_t)blockIdx.x * class_stride + c;
        // A class without tokens has key 0.
        float log_most = class_tops[at] ? log_probability(logit_of(class_tops[at])) : -INFINITE;
        float* answer = answers + recipe.n_asked + 3 * c;
        answer[0] = __uint_as_float((uint32_t)class_tops[at]);
        answer[1] = log_most;
        answer[2] = class_sums[at] ? log_most + logf((float)class_sums[at] / ONE_MASS) : -INFINITE;
    }
}
EMU_KERNEL(score_finish)

// `rows[conditions[i]] = scale mixed[i]`, rows of `width`; nothing where the row is NONE.
KERNEL __launch_bounds__(THREADS) score_condition(const uint32_t* conditions, const float* mixed, float scale, float* rows, int width) {
    int column = blockIdx.x * THREADS + threadIdx.x;
    uint32_t row = conditions[blockIdx.y];
    if (column < width && row != NONE) rows[(int64_t)row * width + column] = mixed[(int64_t)blockIdx.y * width + column] * scale;
}
EMU_KERNEL(score_condition)
