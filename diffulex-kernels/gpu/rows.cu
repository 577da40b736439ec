// Operations on rows of activations, 32-bit floats [n_rows, width]: norm, gate, rounding for products, and element by element.
//
// rms_norm, gate, prepare_rows: grid (n_rows), block 512, 128 bytes of shared memory. A thread has neighbouring pairs of values, the
// same ones in every pass, so that it reads nothing that another thread of the block wrote.
// Rounded rows are written where `form` asks for them: 0 none, 1 bf16, 2 int8 with a scale per row; padded by zeros to
// `stride`, a multiple of 64.
// The others: grid (values / 1024, rounded up), or (rows, width / 1024, rounded up) where rows are listed; block 256; no shared
// memory. Row numbers of -1 are skipped.
#include "block.h"

namespace rows {

constexpr int THREADS = 512, FLAT = 1024;

DEVICE int stride_of(int width) { return (width + 63) & ~63; }

// As in quantization.rs.
constexpr float MAX_INT8 = 127, ROUND = 12582912;
DEVICE int nearest(float value) { return (int)(__float_as_uint(value + ROUND) - __float_as_uint(ROUND)); }
DEVICE uint32_t magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }

// Two neighbouring values of a row of `width`, zeros behind its end. Rows of an even width begin at a pair.
DEVICE float2 pair_at(const float* row, int i, int width) {
    if (width % 2 == 0 && i < width) return *(const float2*)(row + i);
    float2 pair = {i < width ? row[i] : 0, i + 1 < width ? row[i + 1] : 0};
    return pair;
}
DEVICE void put_pair(float* row, int i, int width, float2 pair) {
    if (width % 2 == 0) {
        *(float2*)(row + i) = pair;
        return;
    }
    row[i] = pair.x;
    if (i + 1 < width) row[i + 1] = pair.y;
}

// Makes each pair of this block's row by `make(i)`, and writes the row's rounded form. `made` has what `make` returned.
template <class Make> DEVICE void write_rounded(int width, int form, void* rounded, float* scales, void* words, const float* made, Make make) {
    int stride = stride_of(width);
    int64_t row = blockIdx.x;
    if (form == 0) {
        for (int i = 2 * threadIdx.x; i < width; i += 2 * THREADS) make(i);
    } else if (form == 1) {
        uint32_t* to = (uint32_t*)rounded + row * (stride / 2);
        for (int i = 2 * threadIdx.x; i < stride; i += 2 * THREADS) {
            float2 pair = {0, 0};
            if (i < width) pair = make(i);
            to[i / 2] = pack_bf16(pair.x, pair.y);
        }
    } else {
        uint32_t most = 0;
        for (int i = 2 * threadIdx.x; i < width; i += 2 * THREADS) {
            float2 pair = make(i);
            most = max(most, max(magnitude(pair.x), magnitude(pair.y)));
        }
        float scale = __uint_as_float(block::largest(most, words)) / MAX_INT8;
        float inverse = scale == 0 ? 0 : 1 / scale;
        auto integer = [&](float value) { return min(max(nearest(value * inverse), -127), 127); };
        uint16_t* to = (uint16_t*)rounded + row * (stride / 2);
        for (int i = 2 * threadIdx.x; i < stride; i += 2 * THREADS) {
            float2 pair = pair_at(made, i, width);
            to[i / 2] = (uint16_t)((integer(pair.x) & 255) | (integer(pair.y) & 255) << 8);
        }
        if (threadIdx.x == 0) scales[row] = scale;
    }
}

DEVICE float silu(float x) { return x / (1 + expf(-x)); }
// sqrt(2 / pi).
DEVICE float gelu(float x) { return 0.5f * x * (1 + tanhf(0.79788456080286535588f * x * (1 + 0.044715f * x * x))); }

}  // namespace rows

// x += y where there is a y; then out = x * rsqrt(mean(x^2) + eps) * weight.
KERNEL __launch_bounds__(512) rms_norm(float* x, const float* y, const float* weight, float* out, int width, float eps, int form, void* rounded, float* scales) {
    using namespace rows;
    DYNAMIC_SHARED(words);
    x += (int64_t)blockIdx.x * width;
    out += (int64_t)blockIdx.x * width;
    if (y) y += (int64_t)blockIdx.x * width;
    float squares = 0;
    for (int i = 2 * threadIdx.x; i < width; i += 2 * THREADS) {
        float2 pair = pair_at(x, i, width);
        if (y) {
            float2 added = pair_at(y, i, width);
            pair.x += added.x, pair.y += added.y;
            put_pair(x, i, width, pair);
        }
        squares = fmaf(pair.x, pair.x, squares);
        squares = fmaf(pair.y, pair.y, squares);
    }
    float scale = 1 / sqrtf(block::sum(squares, words) / width + eps);
    write_rounded(width, form, rounded, scales, words, out, [&](int i) {
        float2 pair = pair_at(x, i, width), factors = pair_at(weight, i, width);
        pair.x = pair.x * scale * factors.x, pair.y = pair.y * scale * factors.y;
        put_pair(out, i, width, pair);
        return pair;
    });
}
EMU_KERNEL(rms_norm)

// gate = activation(gate) * up; activation 0: SiLU, 1: GELU by tanh.
KERNEL __launch_bounds__(512) gate(float* gate, const float* up, int width, int activation, int form, void* rounded, float* scales) {
    using namespace rows;
    DYNAMIC_SHARED(words);
    gate += (int64_t)blockIdx.x * width;
    up += (int64_t)blockIdx.x * width;
    write_rounded(width, form, rounded, scales, words, gate, [&](int i) {
        float2 pair = pair_at(gate, i, width), factors = pair_at(up, i, width);
        pair.x = (activation == 0 ? silu(pair.x) : gelu(pair.x)) * factors.x;
        pair.y = (activation == 0 ? silu(pair.y) : gelu(pair.y)) * factors.y;
        put_pair(gate, i, width, pair);
        return pair;
    });
}
EMU_KERNEL(gate)

KERNEL __launch_bounds__(512) prepare_rows(const float* x, int width, int form, void* rounded, float* scales) {
    using namespace rows;
    DYNAMIC_SHARED(words);
    x += (int64_t)blockIdx.x * width;
    write_rounded(width, form, rounded, scales, words, x, [&](int i) { return pair_at(x, i, width); });
}
EMU_KERNEL(prepare_rows)

namespace rows {
// Each value of a flat array, or of a row, that is this thread's.
template <class Work> DEVICE void each(int64_t n, int64_t from, Work work) {
    for (int64_t i = from + threadIdx.x; i < min(n, from + FLAT); i += blockDim.x) work(i);
}
}  // namespace rows

KERNEL __launch_bounds__(256) add(float* x, const float* y, int n) {
    rows::each(n, (int64_t)blockIdx.x * rows::FLAT, [&](int64_t i) { x[i] += y[i]; });
}
EMU_KERNEL(add)

KERNEL __launch_bounds__(256) scale(float* x, int n, float factor) {
    rows::each(n, (int64_t)blockIdx.x * rows::FLAT, [&](int64_t i) { x[i] *= factor; });
}
EMU_KERNEL(scale)

// x = cap tanh(x / cap).
KERNEL __launch_bounds__(256) soft_cap(float* x, int n, float cap) {
    rows::each(n, (int64_t)blockIdx.x * rows::FLAT, [&](int64_t i) { x[i] = tanhf(x[i] / cap) * cap; });
}
EMU_KERNEL(soft_cap)

// x[rows[i]] += y[i]. No row is listed twice.
KERNEL __launch_bounds__(256) add_rows(float* x, const float* y, const int* list, int width) {
    int row = list[blockIdx.x];
    if (row < 0) return;
    rows::each(width, (int64_t)blockIdx.y * rows::FLAT, [&](int64_t i) { x[(int64_t)row * width + i] += y[(int64_t)blockIdx.x * width + i]; });
}
EMU_KERNEL(add_rows)

// out[i] = x[rows[i]]; zeros where the row is -1.
KERNEL __launch_bounds__(256) select_rows(const float* x, float* out, const int* list, int width) {
    int row = list[blockIdx.x];
    rows::each(width, (int64_t)blockIdx.y * rows::FLAT, [&](int64_t i) { out[(int64_t)blockIdx.x * width + i] = row < 0 ? 0 : x[(int64_t)row * width + i]; });
}
EMU_KERNEL(select_rows)
