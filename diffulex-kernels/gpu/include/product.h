// y = x W^T + bias on tensor cores, for weights in chunks (matrix.h): what product_bf16.cu and product_int.cu share.
//
// A sum over chunks of 64 inputs has four parts: chunks 0, 4, 8 .., chunks 1, 5, 9 .., and so on. Each part goes from its first
// chunk to its last, and the parts are added in order. All kernels keep this order, so a result is the same whichever made it.
// Weights are the left operand of mma (16 wide), rows the right one (8 wide), so that few rows cost little.
//
// `run`, for few rows: the 4 warps of a block have a part each, with a pipeline of its own, and the same 16 SLICES outputs of up
// to 8 TILES rows. `run_wide`, for many rows: the warps of a block have outputs and rows of their own and go through all chunks
// together, so that what comes from memory is used more often.
//
// Grid: x counts blocks of outputs of up to three matrices with the same inputs, y tiles of rows. Block and shared memory:
// THREADS and shared_bytes, or Wide::THREADS and Wide::shared_bytes. Inputs are rounded rows, `stride(n_in)` apart, padded by
// zeros.
//
// The caller picks the kernel by the number of rows, and a plain product or one of experts: there a list of tiles says which
// rows meet which expert, and a table has the addresses of the experts' matrices.
#pragma once
#include "matrix.h"

namespace product {

constexpr int WARPS = 4, THREADS = 32 * WARPS;

// Rows of one expert: pairs of a row and an expert, `first` and the next ones, of which there are `n_rows`; none in a tile that
// is only there because launches have a fixed extent.
struct Tile {
    int expert, first, n_rows;
};

// Up to three matrices with the same inputs: where each lies, its bias or null, its result [n_rows, n_out], and n_out; 0 for
// those that are not there.
struct Members {
    const uint8_t* weights[3];
    const float* biases[3];
    float* results[3];
    int n_out[3];
};

// The rows and the matrix of a block.
struct Work {
    const uint8_t* weight;
    const float* bias;
    float* result;
    int n_out, first_out;
    // Rows of the result, from `first` on.
    int first, n_rows;
};

// Finds a block's work; false if it has none. `n_outs`: outputs of a block, `n_most`: its rows.
DEVICE bool find(Work& work, const Members& members, int n_outs, int n_most, int n_rows, const Tile* tiles,
                 const uint8_t* const* experts) {
    int block = blockIdx.x, member = 0;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        int blocks = (members.n_out[i] + n_outs - 1) / n_outs;
        if (member == i && block >= blocks) {
            block -= blocks;
            member = i + 1;
        }
    }
    work.weight = members.weights[0], work.bias = members.biases[0], work.result = members.results[0];
    work.n_out = members.n_out[0];
    #pragma unroll
    for (int i = 1; i < 3; i++) {
        if (member == i) {
            work.weight = members.weights[i], work.bias = members.biases[i], work.result = members.results[i];
            work.n_out = members.n_out[i];
        }
    }
    work.first_out = block * n_outs;
    work.first = blockIdx.y * n_most;
    work.n_rows = min(n_most, n_rows - work.first);
    if (tiles) {
        Tile tile = tiles[blockIdx.y];
        work.first = tile.first;
        work.n_rows = tile.n_rows;
        // Null where the expert's matrix is of another kind, which another launch multiplies with.
        if (tile.n_rows > 0) work.weight = experts[tile.expert * 3 + member];
    }
    return work.n_rows > 0 && work.weight != nullptr;
}

// Bytes of a rounded row's part in a chunk.
DEVICE constexpr int row_bytes(int kind) { return kind == matrix::BF16 ? 128 : 64; }
// Words per output that belong to a chunk but lie behind all chunks.
DEVICE constexpr int unit_bytes(int kind) { return kind == matrix::Q4_K || kind == matrix::Q6_K ? 64 : 0; }
DEVICE constexpr int slices(int tiles) { return tiles > 2 ? 2 : 1; }
DEVICE constexpr int slice_bytes(int kind) { return matrix::chunk_bytes(kind) + unit_bytes(kind); }
DEVICE constexpr int stage_bytes(int kind, int tiles) {
    return slices(tiles) * slice_bytes(kind) + 8 * tiles * row_bytes(kind);
}
// As many copies are on their way as fit: 16 KB a warp let three blocks share a multiprocessor of 227 KB; 24 KB are what a block
// can have everywhere.
DEVICE constexpr int n_stages(int kind, int tiles) {
    int fitting = (tiles > 2 ? 24 : 16) * 1024 / stage_bytes(kind, tiles);
    return fitting > 8 ? 8 : fitting;
}
// Stages, over which the sums of the warps are put at the end; then the number of each row in the input.
DEVICE constexpr int shared_bytes(int kind, int tiles) {
    int stages = WARPS * n_stages(kind, tiles) * stage_bytes(kind, tiles), sums = WARPS * 8 * tiles * 16 * slices(tiles) * 4;
    return (stages > sums ? stages : sums) + 8 * tiles * 4;
}

// Place of unit `u` of 16 bytes of `row` in a stage: units are exchanged by xor so that eight rows meet in no bank.
template <int UNITS> DEVICE int place(int row, int u) {
    return (row * UNITS + (UNITS == 8 ? u ^ (row & 7) : u ^ (row >> 1 & 3))) * 16;
}

// The row of the input for each row of a block, or -1.
template <int ROWS, int N_THREADS> DEVICE void find_inputs(int* inputs, const Work& work, const int* rows) {
    for (int row = threadIdx.x; row < ROWS; row += N_THREADS) {
        int pair = work.first + row;
        inputs[row] = row >= work.n_rows ? -1 : rows ? rows[pair] : pair;
    }
}

// Starts this thread's copies of a chunk, one of N_THREADS: of `n_slices` tiles of 16 outputs, zeros for the rest of SLICES, and
// of the first 8 `n_tiles` rows.
template <int KIND, int SLICES, int N_THREADS>
DEVICE void fetch_chunk(uint8_t* stage, int thread, const Work& work, const uint8_t* units, const uint8_t* x, const int* inputs,
                        int n_tiles, int n_slices, int n_chunks, int chunk) {
    constexpr int CHUNK = matrix::chunk_bytes(KIND), SLICE = slice_bytes(KIND), UNITS = row_bytes(KIND) / 16;
    constexpr int WORDS = unit_bytes(KIND) / 16, COPIES = SLICE / 16;
    int first_tile = work.first_out / 16;
    #pragma unroll 1
    for (int i = thread; i < SLICES * COPIES; i += N_THREADS) {
        int slice = i / COPIES, at = i % COPIES * 16;
        bool is_there = slice < n_slices;
        int64_t tile = first_tile + (is_there ? slice : 0);
        const uint8_t* from = work.weight + (tile * n_chunks + chunk) * CHUNK + at;
        if (WORDS && at >= CHUNK)
            from = units + (tile * (n_chunks / matrix::CHUNKS_PER_UNIT) + chunk / matrix::CHUNKS_PER_UNIT) * 64 + (at - CHUNK);
        copy_async(stage + slice * SLICE + at, from, is_there);
    }
    uint8_t* to = stage + SLICES * SLICE;
    #pragma unroll 1
    for (int i = thread; i < n_tiles * 8 * UNITS; i += N_THREADS) {
        int row = i / UNITS, unit = i % UNITS, input = inputs[row];
        const uint8_t* from = x + ((int64_t)max(input, 0) * n_chunks + chunk) * row_bytes(KIND) + unit * 16;
        copy_async(to + place<UNITS>(row, unit), from, input >= 0);
    }
}

// Adds the parts of each sum, [part][row][output], and writes the results.
template <class Format, int ROWS, int OUTS, int PARTS, int N_THREADS>
DEVICE void write(const typename Format::Sum* all, const Work& work, const int* inputs, const uint8_t* units,
                  const float* x_scales) {
    #pragma unroll 1
    for (int i = threadIdx.x; i < work.n_rows * OUTS; i += N_THREADS) {
        int row = i / OUTS, out = work.first_out + i % OUTS;
        if (out >= work.n_out) continue;
        typename Format::Sum sum = all[i];
        #pragma unroll
        for (int part = 1; part < PARTS; part++) sum += all[part * ROWS * OUTS + i];
        float value = Format::finish(sum, units, out, x_scales ? x_scales[inputs[row]] : 1.0f);
        if (work.bias) value += work.bias[out];
        work.result[(int64_t)(work.first + row) * work.n_out + out] = value;
    }
}

// A format has KIND; the type Sum; `multiply(sums, slices, rows, n_tiles)`, which adds the products of a chunk of each slice with
// the first `n_tiles` tiles of rows; and `finish(sum, units, out, x_scale)`, which makes a sum a number.
template <class Format, int TILES>
DEVICE void run(const uint8_t* __restrict__ x, const float* __restrict__ x_scales, const Members& members, int n_in, int n_rows,
                const Tile* __restrict__ tiles, const int* __restrict__ rows, const uint8_t* const* __restrict__ experts) {
    using Sum = typename Format::Sum;
    constexpr int KIND = Format::KIND, ROWS = 8 * TILES, SLICES = slices(TILES), OUTS = 16 * SLICES, STAGES = n_stages(KIND, TILES);
    static_assert(STAGES >= 2, "a chunk is multiplied with while the next one comes");
    DYNAMIC_SHARED(memory);
    Work work;
    if (!find(work, members, OUTS, ROWS, n_rows, tiles, experts)) return;
    int* inputs = (int*)(memory + shared_bytes(KIND, TILES) - 4 * ROWS);
    find_inputs<ROWS, THREADS>(inputs, work, rows);
    __syncthreads();

    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int n_chunks = matrix::n_chunks(n_in), n_own = (n_chunks - warp + WARPS - 1) / WARPS;
    int n_tiles = (work.n_rows + 7) / 8, n_slices = min(SLICES, matrix::n_tiles(work.n_out) - work.first_out / 16);
    const uint8_t* units = work.weight + matrix::units_at(KIND, work.n_out, n_in);
    uint8_t* stages = memory + warp * STAGES * stage_bytes(KIND, TILES);
    auto fetch = [&](int index) {
        if (index < n_own) {
            uint8_t* stage = stages + index % STAGES * stage_bytes(KIND, TILES);
            fetch_chunk<KIND, SLICES, 32>(stage, lane, work, units, x, inputs, n_tiles, n_slices, n_chunks, index * WARPS + warp);
        }
        copy_commit();
    };

    Sum sums[SLICES][TILES][4];
    #pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            #pragma unroll
            for (int e = 0; e < 4; e++) sums[slice][tile][e] = 0;
    #pragma unroll 1
    for (int index = 0; index < STAGES - 1; index++) fetch(index);
    #pragma unroll 1
    for (int index = 0; index < n_own; index++) {
        copy_wait<STAGES - 2>();
        __syncwarp();
        fetch(index + STAGES - 1);
        const uint8_t* stage = stages + index % STAGES * stage_bytes(KIND, TILES);
        Format::template multiply<SLICES, TILES>(sums, stage, stage + SLICES * slice_bytes(KIND), n_tiles);
    }
    copy_wait<0>();
    __syncthreads();

    // [warp][row][output], over the stages.
    Sum* all = (Sum*)memory;
    #pragma unroll
    for (int slice = 0; slice < SLICES; slice++)
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                int out = slice * 16 + lane / 4 + e / 2 * 8, row = tile * 8 + lane % 4 * 2 + e % 2;
                all[(warp * ROWS + row) * OUTS + out] = sums[slice][tile][e];
            }
    __syncthreads();
    write<Format, ROWS, OUTS, WARPS, THREADS>(all, work, inputs, units, x_scales);
}

// Extents of `run_wide`: WARPS_OUT x WARPS_ROW warps, each with 32 outputs and 8 TILES rows.
template <int KIND, int WARPS_OUT, int WARPS_ROW, int TILES> struct Wide {
    static constexpr int OUTS = 32 * WARPS_OUT, ROWS = 8 * TILES * WARPS_ROW, THREADS = 32 * WARPS_OUT * WARPS_ROW;
    static constexpr int SLICES = 2 * WARPS_OUT, STAGE = SLICES * slice_bytes(KIND) + ROWS * row_bytes(KIND);
    // What fits in 96 KB, which a block can have everywhere.
    static constexpr int FITTING = 96 * 1024 / STAGE, STAGES = FITTING > 4 ? 4 : FITTING;
    // Stages, over which the sums are put at the end; then the number of each row in the input.
    static constexpr int MEMORY = STAGES * STAGE > 4 * ROWS * OUTS ? STAGES * STAGE : 4 * ROWS * OUTS;
    static constexpr int SHARED_BYTES = MEMORY + 4 * ROWS;
};

template <class Format, int WARPS_OUT, int WARPS_ROW, int TILES>
DEVICE void run_wide(const uint8_t* __restrict__ x, const float* __restrict__ x_scales, const Members& members, int n_in,
                     int n_rows, const Tile* __restrict__ tiles, const int* __restrict__ rows,
                     const uint8_t* const* __restrict__ experts) {
    using Sum = typename Format::Sum;
    constexpr int KIND = Format::KIND;
    using Extent = Wide<KIND, WARPS_OUT, WARPS_ROW, TILES>;
    constexpr int STAGES = Extent::STAGES, SLICES = Extent::SLICES;
    static_assert(STAGES >= 2, "a chunk is multiplied with while the next one comes");
    DYNAMIC_SHARED(memory);
    Work work;
    if (!find(work, members, Extent::OUTS, Extent::ROWS, n_rows, tiles, experts)) return;
    int* inputs = (int*)(memory + Extent::MEMORY);
    find_inputs<Extent::ROWS, Extent::THREADS>(inputs, work, rows);
    __syncthreads();

    int lane = threadIdx.x & 31, warp_out = (threadIdx.x >> 5) % WARPS_OUT, warp_row = (threadIdx.x >> 5) / WARPS_OUT;
    int n_chunks = matrix::n_chunks(n_in), n_tiles = (work.n_rows + 7) / 8;
    int n_slices = min(SLICES, matrix::n_tiles(work.n_out) - work.first_out / 16);
    int n_own_tiles = min(TILES, n_tiles - warp_row * TILES);
    const uint8_t* units = work.weight + matrix::units_at(KIND, work.n_out, n_in);
    // The chunk that is fetched next, in the order of the sums.
    int next_part = 0, next_chunk = 0, stage_to = 0, stage_from = 0;
    auto fetch = [&]() {
        if (next_chunk < n_chunks)
            fetch_chunk<KIND, SLICES, Extent::THREADS>(memory + stage_to * Extent::STAGE, threadIdx.x, work, units, x, inputs,
                                                       n_tiles, n_slices, n_chunks, next_chunk);
        copy_commit();
        stage_to = stage_to + 1 < STAGES ? stage_to + 1 : 0;
        next_chunk += WARPS;
        if (next_chunk >= n_chunks && next_part + 1 < WARPS) next_chunk = ++next_part;
    };

    Sum totals[2][TILES][4];
    #pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch();
    #pragma unroll 1
    for (int part = 0; part < WARPS; part++) {
        Sum sums[2][TILES][4];
        #pragma unroll
        for (int i = 0; i < 2 * TILES * 4; i++) sums[i / (4 * TILES)][i / 4 % TILES][i % 4] = 0;
        #pragma unroll 1
        for (int chunk = part; chunk < n_chunks; chunk += WARPS) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            fetch();
            const uint8_t* stage = memory + stage_from * Extent::STAGE;
            const uint8_t* own_rows = stage + SLICES * slice_bytes(KIND) + warp_row * TILES * 8 * row_bytes(KIND);
            Format::template multiply<2, TILES>(sums, stage + warp_out * 2 * slice_bytes(KIND), own_rows, n_own_tiles);
            stage_from = stage_from + 1 < STAGES ? stage_from + 1 : 0;
        }
        #pragma unroll
        for (int i = 0; i < 2 * TILES * 4; i++) {
            Sum& total = totals[i / (4 * TILES)][i / 4 % TILES][i % 4];
            Sum sum = sums[i / (4 * TILES)][i / 4 % TILES][i % 4];
            total = part == 0 ? sum : total + sum;
        }
    }

    copy_wait<0>();
    __syncthreads();
    // [row][output], over the stages.
    Sum* all = (Sum*)memory;
    #pragma unroll
    for (int i = 0; i < 2 * TILES * 4; i++) {
        int slice = i / (4 * TILES), tile = i / 4 % TILES, e = i % 4;
        int out = (warp_out * 2 + slice) * 16 + lane / 4 + e / 2 * 8, row = (warp_row * TILES + tile) * 8 + lane % 4 * 2 + e % 2;
        all[row * Extent::OUTS + out] = totals[slice][tile][e];
    }
    __syncthreads();
    write<Format, Extent::ROWS, Extent::OUTS, 1, Extent::THREADS>(all, work, inputs, units, x_scales);
}

}  // namespace product

// A kernel that passes its arguments to a `run` as above.
#define PRODUCT(name, threads, ...) \
    KERNEL __launch_bounds__(threads, 1) name( \
        const uint8_t* x, const float* x_scales, const uint8_t* weight0, const uint8_t* weight1, const uint8_t* weight2, \
        const float* bias0, const float* bias1, const float* bias2, float* y0, float* y1, float* y2, int n_out0, int n_out1, \
        int n_out2, int n_in, int n_rows, const product::Tile* tiles, const int* rows, const uint8_t* const* experts) { \
        product::Members members = {{weight0, weight1, weight2}, {bias0, bias1, bias2}, {y0, y1, y2}, {n_out0, n_out1, n_out2}}; \
        __VA_ARGS__(x, x_scales, members, n_in, n_rows, tiles, rows, experts); \
    } \
    EMU_KERNEL(name)
// Kernels of a format: for up to 8, 16, 32 and 64 rows, and for many, of 64 x 64 and 128 x 128 rows and outputs.
#define PRODUCTS(name, Format) \
    PRODUCT(name##_8, product::THREADS, product::run<Format, 1>) \
    PRODUCT(name##_16, product::THREADS, product::run<Format, 2>) \
    PRODUCT(name##_32, product::THREADS, product::run<Format, 4>) \
    PRODUCT(name##_64, product::THREADS, product::run<Format, 8>) \
    PRODUCT(name##_64x64, 128, product::run_wide<Format, 2, 2, 4>) \
    PRODUCT(name##_128x128, 256, product::run_wide<Format, 4, 2, 8>)
