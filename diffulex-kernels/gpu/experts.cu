// Experts: which ones a row goes to, its pairs with them in order of experts, and the sum of what they make of it.
//
// The products of experts are those of product_*.cu, given the tiles that `group_pairs` makes. A pair is a row and one of its
// experts; pairs are counted by rows first (`row * n_chosen + i`, experts of a row ascending), and have a place in the order of
// experts, by row within an expert.
#include "device.h"
#include "product.h"

namespace experts {

// Keeps a sum of weights from being zero, as routing.rs.
constexpr float TINY = 1e-20f;

// Sets is_best[i] for the `n_best` largest values, ties to the lower index, in the order of `total_cmp`. For a whole warp.
DEVICE void mark_best(const float* values, int n, int n_best, int* is_best) {
    int lane = threadIdx.x & 31;
    for (int i = lane; i < n; i += 32) is_best[i] = 0;
    __syncwarp();
    for (int best = 0; best < n_best && best < n; best++) {
        uint32_t largest = 0;
        int at = n;
        for (int i = lane; i < n; i += 32) {
            uint32_t value = to_ordered(values[i]);
            if (!is_best[i] && (at == n || value > largest)) largest = value, at = i;
        }
        for (int distance = 16; distance; distance >>= 1) {
            uint32_t other = __shfl_xor_sync(FULL_WARP, largest, distance);
            int other_at = __shfl_xor_sync(FULL_WARP, at, distance);
            if (other_at < n && (at == n || other > largest || (other == largest && other_at < at))) largest = other, at = other_at;
        }
        __syncwarp();
        if (lane == 0) is_best[at] = 1;
        __syncwarp();
    }
}

// The sum of the two largest of a group's values, or its only one.
DEVICE float best_two(const float* values, int n) {
    float first = values[0], second = 0;
    if (n == 1) return first;
    second = values[1];
    if (to_ordered(second) > to_ordered(first)) first = values[1], second = values[0];
    for (int i = 2; i < n; i++) {
        if (to_ordered(values[i]) > to_ordered(first)) second = first, first = values[i];
        else if (to_ordered(values[i]) > to_ordered(second)) second = values[i];
    }
    return first + second;
}

// Experts that are not in the best groups do not take part.
DEVICE void keep_groups(float* ranking, int n_experts, int n_groups, int n_kept, float* group_scores, int* is_kept) {
    int lane = threadIdx.x & 31, group_size = n_experts / n_groups, n = (n_experts + group_size - 1) / group_size;
    for (int group = lane; group < n; group += 32) {
        int first = group * group_size;
        group_scores[group] = best_two(ranking + first, min(group_size, n_experts - first));
    }
    __syncwarp();
    mark_best(group_scores, n, n_kept, is_kept);
    for (int expert = lane; expert < n_experts; expert += 32)
        if (!is_kept[expert / group_size]) ranking[expert] = -INFINITE;
    __syncwarp();
}

}  // namespace experts

// Routing::choose of routing.rs, for every row of `logits` [n_rows, n_experts], in the same order of sums: experts of each row,
// ascending, and their weights, [n_rows, n_chosen].
// Grid: n_rows. Block: 32 threads. Shared memory: 20 bytes an expert. `bias` and `expert_scale` may be null; n_groups is 0 where
// there are no groups.
KERNEL __launch_bounds__(32) choose_experts(const float* logits, const float* bias, const float* expert_scale, int n_experts,
                                            int n_chosen, int is_softmax, int is_bias_weight, int n_groups, int n_kept,
                                            int is_renormalised, float scale, int* chosen, float* weights) {
    DYNAMIC_SHARED(memory);
    float* scores = (float*)memory;
    float* ranking = scores + n_experts;
    float* group_scores = ranking + n_experts;
    int* is_chosen = (int*)(group_scores + n_experts);
    int* is_kept = is_chosen + n_experts;
    int lane = threadIdx.x;
    const float* row = logits + (int64_t)blockIdx.x * n_experts;

    float top = -INFINITE, sum = 0;
    for (int expert = lane; expert < n_experts; expert += 32) top = fmaxf(top, row[expert]);
    for (int distance = 16; distance; distance >>= 1) top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, distance));
    for (int expert = lane; expert < n_experts; expert += 32)
        scores[expert] = is_softmax ? expf(row[expert] - top) : 1.0f / (1.0f + expf(-row[expert]));
    __syncwarp();
    if (is_softmax) {
        // From the first to the last, as the host adds.
        if (lane == 0)
            for (int expert = 0; expert < n_experts; expert++) sum += scores[expert];
        sum = __shfl_sync(FULL_WARP, sum, 0);
        __syncwarp();
    }
    for (int expert = lane; expert < n_experts; expert += 32) {
        float score = is_softmax ? scores[expert] / sum : scores[expert];
        ranking[expert] = bias ? score + bias[expert] : score;
        scores[expert] = is_bias_weight ? ranking[expert] : score;
    }
    __syncwarp();
    if (n_groups > 0) experts::keep_groups(ranking, n_experts, n_groups, n_kept, group_scores, is_kept);
    experts::mark_best(ranking, n_experts, n_chosen, is_chosen);

    float total = 1;
    if (is_renormalised) {
        total = 0;
        if (lane == 0)
            for (int expert = 0; expert < n_experts; expert++)
                if (is_chosen[expert]) total += scores[expert];
        total = __shfl_sync(FULL_WARP, total, 0) + experts::TINY;
    }
    int n_before = 0;
    for (int first = 0; first < n_experts; first += 32) {
        int expert = first + lane;
        bool is_one = expert < n_experts && is_chosen[expert];
        unsigned ones = __ballot_sync(FULL_WARP, is_one);
        if (is_one) {
            int64_t pair = (int64_t)blockIdx.x * n_chosen + n_before + __popc(ones & ((1u << lane) - 1));
            chosen[pair] = expert;
            weights[pair] = scores[expert] / total * (scale * (expert_scale ? expert_scale[expert] : 1.0f));
        }
        n_before += __popc(ones);
    }
}
EMU_KERNEL(choose_experts)

// The order of pairs by expert, and the tiles of up to `n_most` rows of one expert that products take: the row at each place,
// the place of each pair, and `n_tiles` tiles, of which those that are left over are empty.
// Grid: n_experts. Block: 128 threads. Shared memory: 4 bytes an expert and 32. n_tiles is at least the number of pairs, or the
// number of experts and a tile for every n_most pairs.
KERNEL __launch_bounds__(128) group_pairs(const int* chosen, int n_pairs, int n_chosen, int n_experts, int n_most, int n_tiles,
                                          product::Tile* tiles, int* rows, int* places) {
    DYNAMIC_SHARED(memory);
    int* counts = (int*)memory;
    int* totals = counts + n_experts;  // First place and first tile of this expert, then the ones of each warp.
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, expert = blockIdx.x;
    for (int i = threadIdx.x; i < n_experts; i += 128) counts[i] = 0;
    __syncthreads();
    for (int pair = threadIdx.x; pair < n_pairs; pair += 128) atomicAdd(&counts[chosen[pair]], 1);
    __syncthreads();
    if (warp == 0) {
        int place = 0, tile = 0;
        for (int i = lane; i < expert; i += 32) place += counts[i], tile += (counts[i] + n_most - 1) / n_most;
        for (int distance = 16; distance; distance >>= 1) {
            place += __shfl_xor_sync(FULL_WARP, place, distance);
            tile += __shfl_xor_sync(FULL_WARP, tile, distance);
        }
        if (lane == 0) totals[0] = place, totals[1] = tile;
    }
    __syncthreads();
    int place = totals[0], first_tile = totals[1], count = counts[expert], n_own = (count + n_most - 1) / n_most;
    for (int i = threadIdx.x; i < n_own; i += 128)
        tiles[first_tile + i] = {expert, place + i * n_most, min(n_most, count - i * n_most)};
    if (expert == n_experts - 1)
        for (int i = first_tile + n_own + threadIdx.x; i < n_tiles; i += 128) tiles[i] = {0, 0, 0};

    for (int first = 0; first < n_pairs; first += 128) {
        int pair = first + threadIdx.x;
        bool is_one = pair < n_pairs && chosen[pair] == expert;
        unsigned ones = __ballot_sync(FULL_WARP, is_one);
        if (lane == 0) totals[2 + warp] = __popc(ones);
        __syncthreads();
        int mine = place + __popc(ones & ((1u << lane) - 1));
        for (int other = 0; other < 4; other++) {
            if (other < warp) mine += totals[2 + other];
            place += totals[2 + other];
        }
        if (is_one) {
            rows[mine] = pair / n_chosen;
            places[pair] = mine;
        }
        __syncthreads();
    }
}
EMU_KERNEL(group_pairs)

// y[row] = the sum of weight * result over the row's experts, ascending. `results` are in order of places, [n_pairs, width].
// Grid: x of 256 columns, y n_rows. Block: 256 threads.
KERNEL __launch_bounds__(256) combine_experts(const float* results, const int* places, const float* weights, int n_chosen,
                                              int width, float* y) {
    int column = blockIdx.x * 256 + threadIdx.x;
    if (column >= width) return;
    int64_t row = blockIdx.y;
    float sum = 0;
    for (int i = 0; i < n_chosen; i++) {
        int64_t pair = row * n_chosen + i;
        sum += weights[pair] * results[(int64_t)places[pair] * width + column];
    }
    y[row * width + column] = sum;
}
EMU_KERNEL(combine_experts)
