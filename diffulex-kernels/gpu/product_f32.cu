// y = x W^T + bias in f32, each product and sum a fused multiply-add.
//
// A block of 4 warps makes 32 outputs of up to 8 TILES rows; a lane has one output and all the rows. The warps take turns over
// chunks of 32 inputs, in each of which a sum goes from the first input to the last, and their sums are added in the order of
// the warps: the order of a row's sums does not depend on TILES.
//
// Grid: x counts blocks of 32 outputs of up to three matrices, y tiles of rows. Block: 128 threads. Shared memory:
// product_f32::shared_bytes. Arguments are those of product.h; `x` is f32, [n_rows, n_in], as it is.
#include "product.h"

namespace product_f32 {

using product::WARPS;
constexpr int OUTS = 32, INPUTS = 32, STAGES = 3;
// Floats from one output to the next in a stage: 16-byte loads of 8 lanes meet in no bank.
constexpr int ROW = INPUTS + 4, STAGE = OUTS * ROW;

// Stages of weights and one of inputs for each warp, over which its sums are put at the end; then each row's number.
DEVICE constexpr int shared_bytes(int tiles) {
    int stages = WARPS * (STAGES * STAGE + 8 * tiles * INPUTS) * 4, sums = WARPS * 8 * tiles * OUTS * 4;
    return (stages > sums ? stages : sums) + 8 * tiles * 4;
}

template <int TILES>
DEVICE void run(const uint8_t* __restrict__ x_bytes, const float*, const product::Members& members, int n_in, int n_rows,
                const product::Tile* __restrict__ tiles, const int* __restrict__ rows, const uint8_t* const* __restrict__ experts) {
    constexpr int ROWS = 8 * TILES;
    DYNAMIC_SHARED(memory);
    product::Work work;
    if (!product::find(work, members, OUTS, ROWS, n_rows, tiles, experts)) return;
    int* inputs = (int*)(memory + shared_bytes(TILES) - 4 * ROWS);
    product::find_inputs<ROWS, product::THREADS>(inputs, work, rows);
    __syncthreads();

    const float* x = (const float*)x_bytes;
    const float* weight = (const float*)work.weight;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, stride = matrix::stride(n_in);
    int n_chunks = stride / INPUTS, n_own = (n_chunks - warp + WARPS - 1) / WARPS, n_tiles = (work.n_rows + 7) / 8;
    float* stages = (float*)memory + warp * (STAGES * STAGE + ROWS * INPUTS);
    float* x_chunk = stages + STAGES * STAGE;
    auto fetch = [&](int index) {
        if (index < n_own) {
            float* stage = stages + index % STAGES * STAGE;
            int first_in = (index * WARPS + warp) * INPUTS;
            for (int i = lane; i < OUTS * INPUTS / 4; i += 32) {
                int out = i / (INPUTS / 4), at = i % (INPUTS / 4) * 4;
                bool is_there = work.first_out + out < work.n_out;
                const float* from = weight + (int64_t)(is_there ? work.first_out + out : 0) * stride + first_in + at;
                copy_async(stage + out * ROW + at, from, is_there);
            }
        }
        copy_commit();
    };

    float sums[ROWS];
    #pragma unroll
    for (int row = 0; row < ROWS; row++) sums[row] = 0;
    #pragma unroll 1
    for (int index = 0; index < STAGES - 1; index++) fetch(index);
    #pragma unroll 1
    for (int index = 0; index < n_own; index++) {
        int in = (index * WARPS + warp) * INPUTS + lane;
        #pragma unroll 8
        for (int row = 0; row < n_tiles * 8; row++) {
            int input = inputs[row];
            x_chunk[row * INPUTS + lane] = input >= 0 && in < n_in ? x[(int64_t)input * n_in + in] : 0;
        }
        copy_wait<STAGES - 2>();
        __syncwarp();
        fetch(index + STAGES - 1);
        const float* mine = stages + index % STAGES * STAGE + lane * ROW;
        for (int at = 0; at < INPUTS; at += 4) {
            float4 w = *(const float4*)(mine + at);
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                if (tile >= n_tiles) continue;
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    float4 value = *(const float4*)(x_chunk + (tile * 8 + i) * INPUTS + at);
                    float* sum = &sums[tile * 8 + i];
                    *sum = fmaf(value.x, w.x, *sum);
                    *sum = fmaf(value.y, w.y, *sum);
                    *sum = fmaf(value.z, w.z, *sum);
                    *sum = fmaf(value.w, w.w, *sum);
                }
            }
        }
        // Inputs are overwritten next.
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();

    // [warp][row][output], over the stages.
    float* all = (float*)memory;
    #pragma unroll
    for (int row = 0; row < ROWS; row++) all[(warp * ROWS + row) * OUTS + lane] = sums[row];
    __syncthreads();
    #pragma unroll 1
    for (int i = threadIdx.x; i < work.n_rows * OUTS; i += product::THREADS) {
        int row = i / OUTS, out = work.first_out + i % OUTS;
        if (out >= work.n_out) continue;
        float sum = all[i];
        #pragma unroll
        for (int other = 1; other < WARPS; other++) sum += all[other * ROWS * OUTS + i];
        if (work.bias) sum += work.bias[out];
        work.result[(int64_t)(work.first + row) * work.n_out + out] = sum;
    }
}

}  // namespace product_f32

PRODUCT(product_f32_8, product::THREADS, product_f32::run<1>)
PRODUCT(product_f32_16, product::THREADS, product_f32::run<2>)
PRODUCT(product_f32_32, product::THREADS, product_f32::run<4>)
PRODUCT(product_f32_64, product::THREADS, product_f32::run<8>)
