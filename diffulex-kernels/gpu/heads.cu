// Norm and rotation of heads, and the store of K and V.
//
// Each kernel: a warp per row and head, 4 warps a block, grid (warps / 4, rounded up), no shared memory. head_dim is any. A row whose
// slot is -1 is not stored. In the cache a head takes `stride` values, of which those behind head_dim stay what they are. A head is rotated by the angles of its row's position: channel i with channel i + half, for i
// below half; channels from 2 * half on pass through. Left to the caller: positions are within the tables.
//
// The cache holds finite values of V only: where a head of V has a value that is not (once it is rounded), zeros are stored for it
// and NaN for its K. Whoever attends to that position gets NaN; attention can multiply by a weight of 0 for the others.
#include "device.h"

namespace heads {

constexpr int WARPS = 4;

struct Norm {
    const float* weight;  // Null: no norm.
    float eps;
};
struct Rotation {
    const float *cos, *sin;  // [n_positions, half]
    int half;
};

// The head of this warp, in place.
DEVICE void norm_rope(float* x, int head_dim, const Norm& norm, const Rotation& rotation, int position) {
    int lane = threadIdx.x & 31, half = rotation.half;
    float scale = 1;
    if (norm.weight) {
        float squares = 0;
        for (int i = lane; i < head_dim; i += 32) squares = fmaf(x[i], x[i], squares);
        #pragma unroll
        for (int bits = 16; bits > 0; bits /= 2) squares += __shfl_xor_sync(FULL_WARP, squares, bits);
        scale = 1 / sqrtf(squares / head_dim + norm.eps);
    }
    // Without a norm the values stay, bit for bit.
    auto normed = [&](int i) { return norm.weight ? x[i] * scale * norm.weight[i] : x[i]; };
    for (int i = lane; i < half; i += 32) {
        float low = normed(i), high = normed(i + half);
        float cos = rotation.cos[(int64_t)position * half + i], sin = rotation.sin[(int64_t)position * half + i];
        x[i] = low * cos - high * sin;
        x[i + half] = high * cos + low * sin;
    }
    for (int i = 2 * half + lane; i < head_dim; i += 32) x[i] = normed(i);
}

DEVICE float rounded(float x, bool is_bf16) { return is_bf16 ? from_bf16(to_bf16(x)) : x; }
DEVICE void put(void* to, int64_t at, float x, bool is_bf16) {
    if (is_bf16) ((uint16_t*)to)[at] = to_bf16(x);
    else ((float*)to)[at] = x;
}

// K and V of the head of this warp, to the head that begins at `to` in the cache.
DEVICE void store(const float* k, const float* v, int head_dim, void* keys, void* values, int64_t to, bool is_bf16) {
    int lane = threadIdx.x & 31;
    bool is_finite = true;
    for (int i = lane; i < head_dim; i += 32) is_finite &= fabsf(rounded(v[i], is_bf16)) < INFINITE;
    is_finite = __all_sync(FULL_WARP, is_finite);
    for (int i = lane; i < head_dim; i += 32) {
        put(keys, to + i, is_finite ? k[i] : __uint_as_float(0x7fffffffu), is_bf16);
        put(values, to + i, is_finite ? v[i] : 0, is_bf16);
    }
}

}  // namespace heads

// x [n_rows, n_heads * head_dim], in place.
KERNEL __launch_bounds__(128) norm_rope(float* x, const float* weight, float eps, const float* cos, const float* sin, const int* positions, int n_rows, int n_heads, int head_dim, int half) {
    int64_t head = (int64_t)blockIdx.x * heads::WARPS + (threadIdx.x >> 5);
    if (head >= (int64_t)n_rows * n_heads) return;
    heads::norm_rope(x + head * head_dim, head_dim, {weight, eps}, {cos, sin, half}, positions[head / n_heads]);
}
EMU_KERNEL(norm_rope)

// k and v [n_rows, n_kv_heads * head_dim] to the slots of the rows.
KERNEL __launch_bounds__(128) store_rows(const float* k, const float* v, const int* slots, void* keys, void* values, int n_rows, int n_kv_heads, int head_dim, int stride, int is_bf16) {
    int64_t head = (int64_t)blockIdx.x * heads::WARPS + (threadIdx.x >> 5);
    if (head >= (int64_t)n_rows * n_kv_heads) return;
    int slot = slots[head / n_kv_heads];
    if (slot < 0) return;
    heads::store(k + head * head_dim, v + head * head_dim, head_dim, keys, values, ((int64_t)slot * n_kv_heads + head % n_kv_heads) * stride, is_bf16);
}
EMU_KERNEL(store_rows)

// norm_rope of q, norm_rope of k, and store_rows: the same bits in one launch. A row has n_heads warps for q, then n_kv_heads.
KERNEL __launch_bounds__(128) norm_rope_store(float* q, const float* q_weight, float q_eps, float* k, const float* k_weight, float k_eps, const float* v, const float* cos,
    const float* sin, const int* positions, const int* slots, void* keys, void* values, int n_rows, int n_heads, int n_kv_heads, int head_dim, int half, int stride, int is_bf16) {
    int64_t index = (int64_t)blockIdx.x * heads::WARPS + (threadIdx.x >> 5), row = index / (n_heads + n_kv_heads);
    int head = (int)(index % (n_heads + n_kv_heads));
    if (row >= n_rows) return;
    if (head < n_heads) {
        heads::norm_rope(q + (row * n_heads + head) * head_dim, head_dim, {q_weight, q_eps}, {cos, sin, half}, positions[row]);
        return;
    }
    head -= n_heads;
    int64_t from = (row * n_kv_heads + head) * head_dim;
    heads::norm_rope(k + from, head_dim, {k_weight, k_eps}, {cos, sin, half}, positions[row]);
    // Lanes read what others wrote.
    __syncwarp();
    if (slots[row] >= 0) heads::store(k + from, v + from, head_dim, keys, values, ((int64_t)slots[row] * n_kv_heads + head) * stride, is_bf16);
}
EMU_KERNEL(norm_rope_store)
