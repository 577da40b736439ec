// y = x W^T + bias with weights in 4 to 8 bits and inputs in int8; see product.h for extents and arguments.
//
// Sums of integers are exact within a group, and are scaled and added in f32 in the order of the chunks: the same formulas as
// src/kernels/cpu/integer.rs. Where groups of a chunk share a scale and have small factors of it (Q4_K, Q6_K), the sum is an
// integer over the whole chunk.
#include "product.h"

// The 8 words of a lane that make a chunk's operand A, two steps of 4.
struct Chunk {
    uint32_t a[2][4];
};

DEVICE void load(Chunk& chunk, const uint8_t* slice, int lane) {
    #pragma unroll
    for (int step = 0; step < 2; step++) {
        uint4 words = *(const uint4*)(slice + step * 512 + lane * 16);
        chunk.a[step][0] = words.x, chunk.a[step][1] = words.y, chunk.a[step][2] = words.z, chunk.a[step][3] = words.w;
    }
}

DEVICE void load_packed(uint32_t* words, const uint8_t* slice, int lane) {
    uint4 four = *(const uint4*)(slice + lane * 16);
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}

// Operands of N tiles of rows from `first` on, for all inputs of a chunk. They are loaded together, and loops over tiles are inside
// of those over steps: so sums that do not wait for each other are side by side. With 8 tiles and scales to apply, registers are
// few; there a branch between the tiles loaded together keeps the compiler from loading all at once.
template <int N> DEVICE void load_rows(uint32_t (&b)[N][4], const uint8_t* rows, int first, int lane) {
    #pragma unroll
    for (int tile = 0; tile < N; tile++) {
        const uint8_t* of_tile = rows + (first + tile) * 8 * product::row_bytes(matrix::INT8);
        load_matrix(b[tile], of_tile + product::place<4>(lane % 8, lane / 8));
    }
}
DEVICE constexpr int together(int tiles, int most) { return tiles < most ? tiles : most; }

// Weights of a group are multiplied by `scale`, which each has as a number of its own: Int4 and Q8_0.
// A group is GROUPS of a chunk's two steps.
template <int KIND_, class Source> struct Scaled {
    static constexpr int KIND = KIND_;
    typedef float Sum;

    template <int SLICES, int TILES>
    static __device__ __forceinline__ void multiply(float (&sums)[SLICES][TILES][4], const uint8_t* weights, const uint8_t* rows, int n_tiles) {
        int lane = threadIdx.x & 31;
        Chunk chunks[SLICES];
        // Of outputs lane / 4 and 8 more; of each step.
        float scales[SLICES][2][2];
        #pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const uint8_t* from = weights + slice * product::slice_bytes(KIND);
            Source::chunk(chunks[slice], from, lane);
            #pragma unroll
            for (int h = 0; h < 2; h++)
                Source::scales(scales[slice][h], *(const uint32_t*)(from + matrix::quant_bytes(KIND) + (lane / 4 + 8 * h) * 4));
        }
        constexpr int TOGETHER = together(TILES, 4);
        #pragma unroll
        for (int first = 0; first < TILES; first += TOGETHER) {
            if (TILES > 4 && first > 0 && first >= n_tiles) break;
            uint32_t b[TOGETHER][4];
            load_rows(b, rows, first, lane);
            #pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                int dots[TOGETHER][4] = {};
                #pragma unroll
                for (int step = 0; step < 2; step++) {
                    #pragma unroll
                    for (int tile = 0; tile < TOGETHER; tile++) mma_int8(dots[tile], chunks[slice].a[step], b[tile] + 2 * step);
                    if (step == 0 && !Source::IS_STEP_A_GROUP) continue;
                    #pragma unroll
                    for (int i = 0; i < TOGETHER * 4; i++) {
                        int tile = i / 4, e = i % 4;
                        float* sum = &sums[slice][first + tile][e];
                        *sum = fmaf((float)dots[tile][e], scales[slice][e / 2][step], *sum);
                        dots[tile][e] = 0;
                    }
                }
            }
        }
    }

    static __device__ __forceinline__ float finish(float sum, const uint8_t*, int, float x_scale) { return sum * x_scale; }
};

struct Int4Source {
    static constexpr bool IS_STEP_A_GROUP = false;
    // In the upper halves of bytes, four bits are a signed byte, 16 times as large.
    static __device__ __forceinline__ void chunk(Chunk& chunk, const uint8_t* slice, int lane) {
        uint32_t words[4];
        load_packed(words, slice, lane);
        #pragma unroll
        for (int word = 0; word < 4; word++) {
            chunk.a[0][word] = words[word] << 4 & 0xf0f0f0f0u;
            chunk.a[1][word] = words[word] & 0xf0f0f0f0u;
        }
    }
    static __device__ __forceinline__ void scales(float* scales, uint32_t meta) { scales[0] = scales[1] = __uint_as_float(meta) * 0.0625f; }
};

struct Q8_0Source {
    static constexpr bool IS_STEP_A_GROUP = true;
    static __device__ __forceinline__ void chunk(Chunk& chunk, const uint8_t* slice, int lane) { load(chunk, slice, lane); }
    static __device__ __forceinline__ void scales(float* scales, uint32_t meta) {
        scales[0] = from_half((uint16_t)meta);
        scales[1] = from_half((uint16_t)(meta >> 16));
    }
};

// One scale a row: sums stay integers to their end.
struct Int8 {
    static constexpr int KIND = matrix::INT8;
    typedef int Sum;

    template <int SLICES, int TILES>
    static __device__ __forceinline__ void multiply(int (&sums)[SLICES][TILES][4], const uint8_t* weights, const uint8_t* rows, int n_tiles) {
        int lane = threadIdx.x & 31;
        Chunk chunks[SLICES];
        #pragma unroll
        for (int slice = 0; slice < SLICES; slice++) load(chunks[slice], weights + slice * product::slice_bytes(KIND), lane);
        constexpr int TOGETHER = together(TILES, 4);
        #pragma unroll
        for (int first = 0; first < TILES; first += TOGETHER) {
            uint32_t b[TOGETHER][4];
            load_rows(b, rows, first, lane);
            #pragma unroll
            for (int step = 0; step < 2; step++)
                #pragma unroll
                for (int tile = 0; tile < TOGETHER; tile++)
                    #pragma unroll
                    for (int slice = 0; slice < SLICES; slice++)
                        mma_int8(sums[slice][first + tile], chunks[slice].a[step], b[tile] + 2 * step);
        }
    }

    static __device__ __forceinline__ float finish(int sum, const uint8_t* units, int out, float x_scale) {
        return (float)sum * ((const float*)units)[out] * x_scale;
    }
};

DEVICE int byte_of(uint32_t word, int i) { return (int)(word >> 8 * i & 0xff); }

// Unsigned weights with minima: these are subtracted as often as the inputs say, whose sums an operand of ones makes.
struct Q4K {
    static constexpr int KIND = matrix::Q4_K;
    typedef float Sum;

    template <int SLICES, int TILES>
    static __device__ __forceinline__ void multiply(float (&sums)[SLICES][TILES][4], const uint8_t* weights, const uint8_t* rows, int n_tiles) {
        int lane = threadIdx.x & 31;
        Chunk chunks[SLICES];
        uint32_t factors[SLICES][2];
        float scales[SLICES][2], minima[SLICES][2];
        const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
        #pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const uint8_t* from = weights + slice * product::slice_bytes(KIND);
            uint32_t words[4];
            load_packed(words, from, lane);
            #pragma unroll
            for (int word = 0; word < 4; word++) {
                chunks[slice].a[0][word] = words[word] & 0x0f0f0f0fu;
                chunks[slice].a[1][word] = words[word] >> 4 & 0x0f0f0f0fu;
            }
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint8_t* meta = from + matrix::quant_bytes(KIND) + (lane / 4 + 8 * h) * 4;
                uint32_t unit = *(const uint32_t*)(meta + matrix::meta_bytes(KIND));
                factors[slice][h] = *(const uint32_t*)meta;
                scales[slice][h] = from_half((uint16_t)unit);
                minima[slice][h] = -from_half((uint16_t)(unit >> 16));
            }
        }
        constexpr int TOGETHER = together(TILES, TILES > 4 ? 1 : 2);
        #pragma unroll
        for (int first = 0; first < TILES; first += TOGETHER) {
            if (TILES > 4 && first > 0 && first >= n_tiles) break;
            uint32_t b[TOGETHER][4];
            load_rows(b, rows, first, lane);
            int inputs[TOGETHER][2][4] = {};
            #pragma unroll
            for (int i = 0; i < TOGETHER * 2; i++) mma_int8(inputs[i / 2][i % 2], ones, b[i / 2] + i % 2 * 2);
            #pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                int dots[TOGETHER][2][4] = {};
                #pragma unroll
                for (int i = 0; i < TOGETHER * 2; i++) mma_int8(dots[i / 2][i % 2], chunks[slice].a[i % 2], b[i / 2] + i % 2 * 2);
                #pragma unroll
                for (int i = 0; i < TOGETHER * 4; i++) {
                    int tile = i / 4, e = i % 4;
                    uint32_t f = factors[slice][e / 2];
                    int dot = byte_of(f, 0) * dots[tile][0][e] + byte_of(f, 2) * dots[tile][1][e];
                    // All outputs have the same sums of inputs: e / 2 makes no difference.
                    int offset = byte_of(f, 1) * inputs[tile][0][e % 2] + byte_of(f, 3) * inputs[tile][1][e % 2];
                    float* sum = &sums[slice][first + tile][e];
                    *sum = fmaf((float)dot, scales[slice][e / 2], *sum);
                    *sum = fmaf((float)offset, minima[slice][e / 2], *sum);
                }
            }
        }
    }

    static __device__ __forceinline__ float finish(float sum, const uint8_t*, int, float x_scale) { return sum * x_scale; }
};

// Groups of 16 with signed factors.
struct Q6K {
    static constexpr int KIND = matrix::Q6_K;
    typedef float Sum;

    // In the upper six bits of bytes, six bits are a signed byte, 4 times as large.
    static __device__ __forceinline__ void load_six(Chunk& chunk, const uint8_t* slice, int lane) {
        uint32_t low[4];
        load_packed(low, slice, lane);
        uint2 pair = *(const uint2*)(slice + 512 + lane * 8);
        #pragma unroll
        for (int word = 0; word < 4; word++) {
            chunk.a[0][word] = (low[word] << 2 & 0x3c3c3c3cu) | (pair.x << (6 - 2 * word) & 0xc0c0c0c0u);
            chunk.a[1][word] = (low[word] >> 2 & 0x3c3c3c3cu) | (pair.y << (6 - 2 * word) & 0xc0c0c0c0u);
        }
    }

    template <int SLICES, int TILES>
    static __device__ __forceinline__ void multiply(float (&sums)[SLICES][TILES][4], const uint8_t* weights, const uint8_t* rows, int n_tiles) {
        int lane = threadIdx.x & 31;
        Chunk chunks[SLICES];
        uint32_t factors[SLICES][2];
        float scales[SLICES][2];
        #pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const uint8_t* from = weights + slice * product::slice_bytes(KIND);
            load_six(chunks[slice], from, lane);
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint8_t* meta = from + matrix::quant_bytes(KIND) + (lane / 4 + 8 * h) * 4;
                factors[slice][h] = *(const uint32_t*)meta;
                scales[slice][h] = *(const float*)(meta + matrix::meta_bytes(KIND)) * 0.25f;
            }
        }
        constexpr int TOGETHER = together(TILES, TILES > 4 ? 2 : 4);
        #pragma unroll
        for (int first = 0; first < TILES; first += TOGETHER) {
            if (TILES > 4 && first > 0 && first >= n_tiles) break;
            uint32_t b[TOGETHER][4];
            load_rows(b, rows, first, lane);
            #pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                int totals[TOGETHER][4] = {};
                #pragma unroll
                for (int group = 0; group < 4; group++) {
                    int dots[TOGETHER][4] = {};
                    #pragma unroll
                    for (int tile = 0; tile < TOGETHER; tile++)
                        mma_int8_k16(dots[tile], chunks[slice].a[group / 2] + group % 2 * 2, b[tile][group]);
                    #pragma unroll
                    for (int i = 0; i < TOGETHER * 4; i++)
                        totals[i / 4][i % 4] += (int8_t)byte_of(factors[slice][i % 4 / 2], group) * dots[i / 4][i % 4];
                }
                #pragma unroll
                for (int i = 0; i < TOGETHER * 4; i++) {
                    float* sum = &sums[slice][first + i / 4][i % 4];
                    *sum = fmaf((float)totals[i / 4][i % 4], scales[slice][i % 4 / 2], *sum);
                }
            }
        }
    }

    static __device__ __forceinline__ float finish(float sum, const uint8_t*, int, float x_scale) { return sum * x_scale; }
};

typedef Scaled<matrix::INT4, Int4Source> Int4;
typedef Scaled<matrix::Q8_0, Q8_0Source> Q8_0;

PRODUCTS(product_int8, Int8)
PRODUCTS(product_int4, Int4)
PRODUCTS(product_q8_0, Q8_0)
PRODUCTS(product_q4_k, Q4K)
PRODUCTS(product_q6_k, Q6K)
