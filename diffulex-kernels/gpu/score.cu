// Scoring: from rows of logits to a token for each, and what strategies and clients ask about it (kernels/score.rs has the
// contract). Up to 64 recipes at a time; the logits of recipe r are row r, [n_out] f32, and those of unguided rows lie behind.
//
// Launches, in order, with the grid (x, y) and the threads of a block:
//   score_settle   (tiles, recipes), 256  soft cap, the strategy's temperature and guidance, in place; where one is asked for
//   score_change   (changes / 256), 256   changes of single tokens' logits; where there are some
//   score_tiles    (tiles, recipes), 256  each tile of 2048 tokens in a few numbers
//   score_cut      (recipes), 1024        what top-k, top-p and min-p leave (score_cut.cu); where a recipe cuts
//   score_classes  (classes, recipes), 256  likeliest, sum and drawn token of each class; where classes are asked for
//   score_finish   (recipes), 256         joins the tiles, draws, writes the record and the answers
//   score_condition (width / 256, recipes), 256  rows that condition canvases, from mean embeddings
//
// A row's result depends on that row alone. Sums of floats are made in the order of ids. Where threads add in any order, they
// add integers: a mass is 2^40 times a token's weight, which is relative to 1 at the likeliest token, so that sums and draws are
// exact. Weights below 2^-41 have no mass: 10^6 of them are 5e-7 of the total.
//
// Shared memory is that of `Room`, in score_cut of `CutRoom`, and in score_finish of `FinishRoom`.
#include "score.h"

namespace score {

// Words of a class's answer.
constexpr uint32_t CLASS_WORDS = 6;

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

struct FinishRoom {
    Room room;
    uint64_t likeliest[MAX_RANKED];
};

// A row of which the tiles are known.
struct Row {
    const float* logits;
    const Tile* tiles;
    int n_tiles;
    const uint64_t* masses;  // Of tiles, where the row is cut.
    float top;
    uint32_t limit;  // Of the cut.
    uint64_t mass;   // Of all that is kept.
};

DEVICE bool is_kept(const Row& row, float x) { return distance(x, row.top) <= row.limit; }
DEVICE double total_of(uint64_t mass) { return (double)mass / (double)ONE_MASS; }
DEVICE float probability(const Recipe& recipe, const Row& row, float x) {
    return is_kept(row, x) ? (float)((double)weight_of(x, row.top, recipe.factor) / total_of(row.mass)) : 0.0f;
}
DEVICE uint64_t mass_of_tile(const Recipe& recipe, const Row& row, int tile) {
    return recipe.is_cut ? row.masses[tile] : mass_of(row.tiles[tile].top, row.tiles[tile].total, row.top, recipe.factor);
}

// The likeliest tokens of a row, from those of its tiles, to shared memory; returns the first, or 0 where there is none.
DEVICE uint64_t rank(const Recipe& recipe, const uint64_t* ranked, int n_tiles, FinishRoom* shared) {
    uint64_t below = ~(uint64_t)0, first = 0;
    for (uint32_t rank = 0; rank < recipe.n_ranked; rank++) {
        uint64_t key = 0;
        for (uint32_t i = threadIdx.x; i < n_tiles * recipe.n_ranked; i += THREADS) {
            uint64_t of_tile = ranked[i / recipe.n_ranked * MAX_RANKED + i % recipe.n_ranked];
            if (of_tile < below) key = max(key, of_tile);
        }
        below = most(key, &shared->room);
        if (rank == 0) first = below;
        if (threadIdx.x == 0) shared->likeliest[rank] = below;
    }
    return first;
}

// The number that draws in a class, times 2^64 (classes.rs has the source).
DEVICE uint64_t uniform_of_class(uint64_t uniform, uint32_t c) {
    uint64_t word = uniform + ((uint64_t)c + 1) * 0x9e3779b97f4a7c15ull;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ word >> 27) * 0x94d049bb133111ebull;
    return (word ^ word >> 31) >> 11 << 11;
}

// The first token, by id, at which the masses exceed the recipe's share of them.
DEVICE uint32_t draw(const Recipe& recipe, const Row& row, Room* room) {
    uint64_t target = __umul64hi(recipe.uniform, row.mass), before = 0;
    Found found = {0, 0, NONE};
    int first = -THREADS;
    while (found.index == NONE) {
        first += THREADS;
        int tile = first + (int)threadIdx.x;
        found = find(tile < row.n_tiles ? mass_of_tile(recipe, row, tile) : 0, target - before, room);
        if (found.index == NONE) before += found.before;
    }
    // Within the tile: relative to its own top, as its sum was, unless it is cut.
    uint64_t left = target - before - found.before;
    first = (first + (int)found.index) * TILE + (int)threadIdx.x * PER_THREAD;
    float top = recipe.is_cut ? row.top : from_ordered(row.tiles[first / TILE].top);
    auto mass_at = [&](int id) {
        bool counts = has(recipe.vocabulary, id) && is_kept(row, row.logits[id]);
        return counts ? to_mass(weight_of(row.logits[id], top, recipe.factor)) : 0;
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
    return room->found.index;
}

// The probability of the second token of all, of a greedy row.
DEVICE float second_probability(const Recipe& recipe, const Row& row, Room* room) {
    uint64_t best = 0, second = 0;
    for (int tile = threadIdx.x; tile < row.n_tiles; tile += THREADS)
        best = max(best, (uint64_t)row.tiles[tile].top << 32 | (uint32_t)tile);
    best = most(best, room);
    for (int tile = threadIdx.x; tile < row.n_tiles; tile += THREADS)
        second = max(second, (uint64_t)(tile == (int)(uint32_t)best ? row.tiles[tile].second : row.tiles[tile].top));
    second = most(second, room);
    return second ? probability(recipe, row, from_ordered((uint32_t)second)) : 0;
}

// Sum of p ln p.
DEVICE float negative_entropy(const Recipe& recipe, const Row& row, const Cut* cut, Room* room) {
    double log_total = 0;
    for (int tile = threadIdx.x; tile < row.n_tiles; tile += THREADS) {
        const Tile& of_tile = row.tiles[tile];
        if (!is_finite(of_tile.top)) continue;
        float d = (from_ordered(of_tile.top) - row.top) * recipe.factor, share = expf(d);
        if (share > 0) log_total += (double)share * ((double)of_tile.log_total + (double)of_tile.total * (double)d);
    }
    double mean = recipe.is_cut ? -(double)cut->log_mass / (double)row.mass : sum(log_total, room) / total_of(row.mass);
    return (float)(mean - log(total_of(row.mass)));
}

// By one thread. `score` is that of several tokens, where it is asked for and not the margin of those that may be drawn.
DEVICE void write_record(const Recipe& recipe, const Row& row, uint32_t token, float score, const uint64_t* likeliest, Record* record) {
    bool can_be = recipe.is_greedy || has(recipe.vocabulary, (int)token);
    float confidence = can_be ? probability(recipe, row, row.logits[token]) : 0, ranks[2] = {0, 0};
    for (uint32_t rank = 0; rank < MAX_RANKED; rank++) {
        uint64_t key = rank < recipe.n_ranked ? likeliest[rank] : 0;
        bool is_there = key != 0 && is_kept(row, logit_of(key)), is_reported = is_there && rank < recipe.n_likeliest;
        float p = is_there ? probability(recipe, row, logit_of(key)) : 0;
        record->likeliest[rank] = is_reported ? (uint32_t)key : 0;
        record->probabilities[rank] = is_reported ? p : 0;
        if (rank == 0) ranks[0] = p;
        if (rank == 1) ranks[1] = p;
    }
    if (recipe.score == PROBABILITY) score = confidence;
    if (recipe.score == MARGIN && !recipe.is_greedy) score = ranks[0] - ranks[1];
    record->is_scored = 1;
    record->token = token;
    record->confidence = confidence;
    record->score = score;
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
        if (has(recipe.vocabulary, id)) drawable |= 1u << i;
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

// A class of a row, `found` of [recipes][stride]. `cuts` is null where no recipe cuts.
//
// The tokens of a class are read twice: by all threads in turn for the likeliest, then, for sums, a range by each thread, so that a
// drawn token lies in the range of one.
KERNEL __launch_bounds__(THREADS) score_classes(const Recipe* recipes, const float* logits, int n_out, const Tile* tiles, int n_tiles,
                                                const Cut* cuts, Class* found, int stride) {
    DYNAMIC_SHARED(memory);
    Room* room = (Room*)memory;
    const Recipe recipe = recipes[blockIdx.y];
    uint32_t c = blockIdx.x;
    if (recipe.place == NONE || c >= recipe.n_classes) return;
    const float* row = logits + (int64_t)blockIdx.y * n_out;
    found += (int64_t)blockIdx.y * stride + c;
    float row_top = 0;
    uint32_t limit = NONE;
    if (recipe.is_cut) {
        uint32_t top = top_of(tiles + (int64_t)blockIdx.y * n_tiles, n_tiles, &Tile::top, room);
        // Nothing was cut, and the row has no scores.
        if (!is_finite(top)) return;
        row_top = from_ordered(top);
        limit = cuts[blockIdx.y].limit;
    }
    uint32_t start = c ? recipe.class_ends[c - 1] : 0, n = recipe.class_ends[c] - start;
    const uint32_t* tokens = recipe.class_ends + recipe.n_classes + start;

    // Ranked by whether they are kept, then as others are: ids have 31 bits.
    uint64_t likeliest = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float x = row[tokens[i]];
        uint64_t is_kept = distance(x, row_top) <= limit;
        likeliest = max(likeliest, is_kept << 63 | (uint64_t)ordered(x) << 31 | tokens[i]);
    }
    likeliest = most(likeliest, room);
    uint32_t is_cut = 1 - (uint32_t)(likeliest >> 63);
    float top = from_ordered((uint32_t)(likeliest >> 31));
    uint32_t token = (uint32_t)likeliest & 0x7fffffff;
    if (n == 0 || top == -INFINITE) {
        if (threadIdx.x == 0) *found = {0, -INFINITE, token, token, n > 0 ? is_cut : 0};
        return;
    }

    uint32_t of_thread = (n + THREADS - 1) / THREADS, first = min(threadIdx.x * of_thread, n), end = min(first + of_thread, n);
    auto mass_at = [&](uint32_t i) {
        float x = row[tokens[i]];
        bool counts = x > -INFINITE && (is_cut || distance(x, row_top) <= limit);
        return counts ? to_mass(weight_of(x, top, recipe.factor)) : 0;
    };
    uint64_t mine = 0;
    for (uint32_t i = first; i < end; i++) mine += mass_at(i);
    uint64_t mass = sum(mine, room);
    if (recipe.is_greedy || recipe.given != NONE) {
        if (threadIdx.x == 0) *found = {mass, top, token, token, is_cut};
        return;
    }
    uint64_t target = __umul64hi(uniform_of_class(recipe.uniform, c), mass);
    Found thread = find(mine, target, room);
    if (threadIdx.x == thread.index) {
        uint64_t left = target - thread.before;
        uint32_t i = first;
        for (uint64_t here = mass_at(i); left >= here; here = mass_at(++i)) left -= here;
        *found = {mass, top, token, tokens[i], is_cut};
    }
}
EMU_KERNEL(score_classes)

// Writes record `place` of `output`, and the answers about tokens and classes.
KERNEL __launch_bounds__(THREADS, 2) score_finish(const Recipe* recipes, const float* logits, int n_out, const Tile* tiles, int n_tiles,
                                               const uint64_t* ranked, const uint64_t* masses, const Cut* cuts, const Class* classes,
                                               int class_stride, const uint32_t* asked, uint32_t* output) {
    DYNAMIC_SHARED(memory);
    FinishRoom* shared = (FinishRoom*)memory;
    Room* room = &shared->room;
    const Recipe recipe = recipes[blockIdx.x];
    if (recipe.place == NONE) return;
    int64_t first_tile = (int64_t)blockIdx.x * n_tiles;
    Row row = {logits + (int64_t)blockIdx.x * n_out, tiles + first_tile, n_tiles, masses + first_tile, 0, NONE, 0};
    Record* record = (Record*)output + recipe.place;

    uint64_t likeliest = rank(recipe, ranked + first_tile * MAX_RANKED, n_tiles, shared);
    bool is_whole = recipe.n_asked > 0 || recipe.n_classes > 0;
    uint32_t top = top_of(row.tiles, n_tiles, &Tile::top, room);
    uint32_t whole_top = is_whole ? top_of(row.tiles, n_tiles, &Tile::whole_top, room) : top;
    if (!is_finite(top) || !is_finite(whole_top) || likeliest == 0) {
        if (threadIdx.x == 0) record->is_scored = 0;
        return;
    }
    row.top = from_ordered(top);
    if (recipe.is_cut) row.limit = cuts[blockIdx.x].limit;
    for (int tile = threadIdx.x; tile < n_tiles; tile += THREADS) row.mass += mass_of_tile(recipe, row, tile);
    row.mass = sum(row.mass, room);

    uint32_t token = recipe.is_greedy ? (uint32_t)likeliest : recipe.given;
    if (token == NONE) token = draw(recipe, row, room);
    float score = 0;
    if (recipe.score == MARGIN && recipe.is_greedy) score = probability(recipe, row, row.top) - second_probability(recipe, row, room);
    if (recipe.score == NEGATIVE_ENTROPY) score = negative_entropy(recipe, row, &cuts[blockIdx.x], room);
    if (threadIdx.x == 0) write_record(recipe, row, token, score, shared->likeliest, record);

    // Under the whole vocabulary, uncut.
    if (!is_whole) return;
    uint64_t mass = 0;
    for (int tile = threadIdx.x; tile < n_tiles; tile += THREADS) {
        const Tile& of_tile = row.tiles[tile];
        if (recipe.is_greedy) mass += mass_of_tile(recipe, row, tile);
        else mass += mass_of(of_tile.whole_top, of_tile.whole_total, from_ordered(whole_top), recipe.factor);
    }
    float log_total = (float)log(total_of(sum(mass, room)));
    auto log_probability = [&](float x) { return (x - from_ordered(whole_top)) * recipe.factor - log_total; };
    float* answers = (float*)output + recipe.first_answer;
    for (uint32_t i = threadIdx.x; i < recipe.n_asked; i += THREADS)
        answers[i] = log_probability(row.logits[asked[recipe.first_asked + i]]);
    for (uint32_t c = threadIdx.x; c < recipe.n_classes; c += THREADS) {
        Class of_row = classes[(int64_t)blockIdx.x * class_stride + c];
        bool is_there = of_row.top > -INFINITE;
        float log_most = is_there ? log_probability(of_row.top) : -INFINITE;
        float* answer = answers + recipe.n_asked + CLASS_WORDS * c;
        answer[0] = __uint_as_float(of_row.token);
        answer[1] = log_most;
        answer[2] = is_there ? log_most + logf((float)of_row.mass / ONE_MASS) : -INFINITE;
        answer[3] = __uint_as_float(of_row.drawn);
        answer[4] = is_there ? log_probability(row.logits[of_row.drawn]) : -INFINITE;
        answer[5] = __uint_as_float(of_row.is_cut);
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
