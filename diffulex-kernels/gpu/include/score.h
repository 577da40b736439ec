// What scoring's kernels share: the structures that score.rs writes and reads, sums over the threads of a block, and masses.
#pragma once
#include "block.h"

namespace score {

constexpr uint32_t NONE = 0xffffffffu;
// Tokens of a tile.
constexpr int TILE = 2048;
constexpr int THREADS = 256;
constexpr int PER_THREAD = TILE / THREADS;
// Likeliest tokens that are reported, at most (MAX_LIKELIEST).
constexpr int MAX_RANKED = 20;
constexpr float ONE_MASS = 1099511627776.0f;  // 2^40

// Which tokens may be drawn: those below `n`, which are all in the head, but for `mask`.
struct Vocabulary {
    uint32_t n, mask;
};

// As score.rs writes it.
struct Recipe {
    // Where each class ends in the list of tokens behind these numbers; null: no classes are asked for.
    const uint32_t* class_ends;
    uint64_t uniform;          // 2^64 times the number that draws.
    uint32_t place;            // Of the record; NONE: there is no recipe.
    Vocabulary vocabulary;
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
    uint32_t first_answer;  // Word of the output: log-probabilities, then classes of six words each.
};

enum Score : uint32_t { PROBABILITY, MARGIN, NEGATIVE_ENTROPY };

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

// What a row has for a class.
struct Class {
    uint64_t mass;   // Of the tokens that count, relative to the likeliest of them.
    float top;       // Logit of that one; minus infinity where there is no token.
    uint32_t token;  // That one.
    uint32_t drawn;
    uint32_t is_cut;  // All tokens count: the cuts keep none.
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

// Integers in the order of numbers; anything that is no number is above all.
DEVICE uint32_t ordered(float x) { return x != x ? NONE : to_ordered(x); }
// A logit and its token, by which it is ranked: ties go to the highest id.
DEVICE uint64_t ranked_key(uint32_t ordered, int id) { return (uint64_t)ordered << 32 | (uint32_t)id; }
DEVICE float logit_of(uint64_t key) { return from_ordered((uint32_t)(key >> 32)); }
// From one of `ordered`; not of none, infinities and what is no number.
DEVICE bool is_finite(uint32_t top) { return top > ordered(-INFINITE) && top < ordered(INFINITE); }
DEVICE bool has(Vocabulary vocabulary, int id) { return (uint32_t)id < vocabulary.n && (uint32_t)id != vocabulary.mask; }

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

// How far a logit is below the top, as an integer in the order of distances.
DEVICE uint32_t distance(float x, float top) { return __float_as_uint(top - x); }

}  // namespace score
