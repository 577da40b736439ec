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

// Copies chunks to stages, N_THREADS threads together: SLICES tiles of 16 outputs, of which `n_slices` are there, and ROWS rows;
// zeros instead of what is not there. A thread copies the same places of every chunk, so that nearly all of their addresses is
// computed once: with a few instructions more for each copy, products are bound by instructions.
template <int KIND, int SLICES, int ROWS, int N_THREADS> struct Fetcher {
    static constexpr int CHUNK = matrix::chunk_bytes(KIND), UNITS = row_bytes(KIND) / 16;
    // Copies of 16 bytes: of a slice, of all slices, of a thread.
    static constexpr int OF_SLICE = slice_bytes(KIND) / 16, OF_ALL = SLICES * OF_SLICE;
    static constexpr int N_WEIGHTS = (OF_ALL + N_THREADS - 1) / N_THREADS, N_ROWS = ROWS * UNITS / N_THREADS;
    // Whether a thread's copies of weights are equally far from its first one for all threads: none crosses from a slice to the next.
    static constexpr bool IS_EVEN = OF_SLICE % N_THREADS == 0 || N_THREADS % OF_SLICE == 0;
    // Copies of a thread from one row to the next whose units `place` exchanges in the same way: 8 rows, or a multiple.
    static constexpr int PERIOD = N_THREADS >= 8 * UNITS ? 1 : 8 * UNITS / N_THREADS;
    static_assert(ROWS * UNITS % N_THREADS == 0 && N_ROWS % PERIOD == 0 && N_WEIGHTS <= 32 && N_ROWS <= 32, "");
    static_assert(unit_bytes(KIND) == 0 || !IS_EVEN, "words behind all chunks are not a chunk further in the next chunk");

    // Offsets are counted in units of 16 bytes, so that 32 bits are enough for every matrix.
    const uint8_t *weights, *rows;
    uint32_t slice_units, weights_at[IS_EVEN ? 1 : N_WEIGHTS], rows_at[N_ROWS];
    int thread, to_rows[PERIOD];
    // A bit for each copy: whether its slice or row is there, and whether it is of the words behind all chunks.
    uint32_t has_slice, has_row, is_behind;

    __device__ __forceinline__ Fetcher(int thread, const Work& work, const uint8_t* x, const int* inputs, int n_slices, int n_chunks)
        : weights(work.weight), rows(x), slice_units(n_chunks * (CHUNK / 16)), thread(thread), has_slice(0), has_row(0), is_behind(0) {
        int first_tile = work.first_out / 16;
        if (IS_EVEN) weights += (int64_t)(first_tile + thread / OF_SLICE) * n_chunks * CHUNK + thread % OF_SLICE * 16;
        #pragma unroll
        for (int i = 0; i < N_WEIGHTS; i++) {
            int copy = i * N_THREADS + thread, slice = copy / OF_SLICE, at = copy % OF_SLICE;
            if (slice < n_slices) has_slice |= 1u << i;
            if (IS_EVEN) continue;
            uint32_t tile = first_tile + min(slice, n_slices - 1);
            weights_at[i] = tile * slice_units + at;
            if (at >= CHUNK / 16) {
                is_behind |= 1u << i;
                weights_at[i] = matrix::n_tiles(work.n_out) * slice_units + tile * (n_chunks / matrix::CHUNKS_PER_UNIT) * 4 + at - CHUNK / 16;
            }
        }
        #pragma unroll
        for (int i = 0; i < N_ROWS; i++) {
            int copy = i * N_THREADS + thread, input = inputs[copy / UNITS];
            if (input >= 0) has_row |= 1u << i;
            rows_at[i] = (uint32_t)max(input, 0) * (n_chunks * UNITS) + copy % UNITS;
            if (i < PERIOD) to_rows[i] = place<UNITS>(copy / UNITS, copy % UNITS);
        }
    }

    // Whether copy `i` of some thread is of the words behind all chunks.
    static __device__ __forceinline__ constexpr bool may_be_behind(int i) {
        return unit_bytes(KIND) && (N_THREADS >= OF_SLICE || i * N_THREADS % OF_SLICE + N_THREADS > CHUNK / 16);
    }

    // Starts this thread's copies of a chunk.
    __device__ __forceinline__ void operator()(uint8_t* stage, int chunk) const {
        const uint8_t* from = weights + (int64_t)chunk * CHUNK;
        uint8_t* to = stage + thread * 16;
        #pragma unroll
        for (int i = 0; i < N_WEIGHTS; i++) {
            const uint8_t* copied = from;
            if (IS_EVEN) {
                copied += (uint64_t)slice_units * (i * N_THREADS / OF_SLICE * 16) + i * N_THREADS % OF_SLICE * 16;
            } else if (may_be_behind(i)) {
                uint32_t step = is_behind >> i & 1 ? chunk / matrix::CHUNKS_PER_UNIT * 4 : chunk * (CHUNK / 16);
                copied = weights + (uint64_t)(weights_at[i] + step) * 16;
            } else {
                copied += (uint64_t)weights_at[i] * 16;
            }
            if (OF_ALL % N_THREADS == 0 || i + 1 < N_WEIGHTS || i * N_THREADS + thread < OF_ALL)
                copy_async(to + i * N_THREADS * 16, copied, SLICES == 1 || has_slice >> i & 1);
        }
        from = rows + (int64_t)chunk * row_bytes(KIND);
        #pragma unroll
        for (int i = 0; i < N_ROWS; i++) {
            to = stage + SLICES * slice_bytes(KIND) + to_rows[i % PERIOD] + i / PERIOD * PERIOD * N_THREADS * 16;
            copy_async(to, from + (uint64_t)rows_at[i] * 16, has_row >> i & 1);
        }
    }
};

// Place of a sum among OUTS a row. Lanes that write together have 8 outputs of 4 pairs of rows; by xor they meet in no bank.
template <int OUTS> DEVICE int sum_at(int row, int out) { return (row * OUTS + out) ^ (row >> 1 & 3) << 3; }

// Stores a warp's sums in the order of `sum_at`; `all` is where its first row and output would be.
template <int OUTS, int SLICES, int TILES, class Sum> DEVICE void store(Sum* all, const Sum (&sums)[SLICES][TILES][4]) {
    int lane = threadIdx.x & 31, at[4];
    // The rest of an address is the same for all lanes.
    #pragma unroll
    for (int i = 0; i < 4; i++) at[i] = sum_at<OUTS>(lane % 4 * 2, lane / 4 + i * 8);
    #pragma unroll
    for (int i = 0; i < SLICES * TILES * 4; i++) {
        int slice = i / (4 * TILES), tile = i / 4 % TILES, e = i % 4;
        int further = (tile * 8 + e % 2) * OUTS + slice * 16 + e / 2 * 8;
        all[at[further / 8 % 4] + further / 32 * 32] = sums[slice][tile][e];
    }
}

// Adds the parts of each sum, [part][row][output] in the order of `sum_at`, and writes the results.
template <class Format, int ROWS, int OUTS, int PARTS, int N_THREADS>
DEVICE void write(const typename Format::Sum* all, const Work& work, const int* inputs, const uint8_t* units,
                  const float* x_scales) {
    #pragma unroll 1
    for (int i = threadIdx.x; i < work.n_rows * OUTS; i += N_THREADS) {
        int row = i / OUTS, out = work.first_out + i % OUTS;
        if (out >= work.n_out) continue;
        const typename Format::Sum* parts = all + sum_at<OUTS>(row, i % OUTS);
        typename Format::Sum sum = *parts;
        #pragma unroll
        for (int part = 1; part < PARTS; part++) sum += parts[part * ROWS * OUTS];
        float value = Format::finish(sum, units, out, x_scales ? x_scales[inputs[row]] : 1.0f);
        if (work.bias) value += work.bias[out];
        work.result[(int64_t)(work.first + row) * work.n_out + out] = value;
    }
}

// A format has KIND; the type Sum; `multiply(sums, slices, rows, n_tiles)`, which adds the products of a chunk of each slice with
// all tiles of rows or with the first `n_tiles`; and `finish(sum, units, out, x_scale)`, which makes a sum a number. Rows that are
// not there are zeros. A branch for each tile would cost more than their products: nothing overlaps across it.
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
    constexpr int STAGE = stage_bytes(KIND, TILES);
    uint8_t* stages = memory + warp * STAGES * STAGE;
    const Fetcher<KIND, SLICES, ROWS, 32> fetcher(lane, work, x, inputs, n_slices, n_chunks);
    // Stages of the chunk that is fetched next, which is that of the last one used, and of the chunk that is used next.
    int to = 0, from = 0;
    auto fetch = [&](int index) {
        if (index < n_own) fetcher(stages + to, index * WARPS + warp);
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
    for (int index = 0; index < STAGES - 1; index++, to += STAGE) fetch(index);
    #pragma unroll 1
    for (int index = 0; index < n_own; index++) {
        copy_wait<STAGES - 2>();
        __syncwarp();
        fetch(index + STAGES - 1);
        Format::template multiply<SLICES, TILES>(sums, stages + from, stages + from + SLICES * slice_bytes(KIND), n_tiles);
        to = from;
        from = from < (STAGES - 1) * STAGE ? from + STAGE : 0;
    }
    copy_wait<0>();
    __syncthreads();

    // [warp][row][output] in the order of `sum_at`, over the stages.
    Sum* all = (Sum*)memory;
    store<OUTS>(all + warp * ROWS * OUTS, sums);
    const uint8_t* units = work.weight + matrix::units_at(KIND, work.n_out, n_in);
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

    int warp_out = (threadIdx.x >> 5) % WARPS_OUT, warp_row = (threadIdx.x >> 5) / WARPS_OUT;
    int n_chunks = matrix::n_chunks(n_in), n_own_tiles = (work.n_rows + 7) / 8 - warp_row * TILES;
    int n_slices = min(SLICES, matrix::n_tiles(work.n_out) - work.first_out / 16);
    const Fetcher<KIND, SLICES, Extent::ROWS, Extent::THREADS> fetcher(threadIdx.x, work, x, inputs, n_slices, n_chunks);
    // The chunk that is fetched next, in the order of the sums; stages as in `run`.
    int next_part = 0, next_chunk = 0, to = 0, from = 0;
    auto fetch = [&]() {
        if (next_chunk < n_chunks) fetcher(memory + to, next_chunk);
        copy_commit();
        next_chunk += WARPS;
        if (next_chunk >= n_chunks && next_part + 1 < WARPS) next_chunk = ++next_part;
    };

    Sum totals[2][TILES][4];
    #pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++, to += Extent::STAGE) fetch();
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
            const uint8_t* stage = memory + from;
            const uint8_t* own_rows = stage + SLICES * slice_bytes(KIND) + warp_row * TILES * 8 * row_bytes(KIND);
            Format::template multiply<2, TILES>(sums, stage + warp_out * 2 * slice_bytes(KIND), own_rows, n_own_tiles);
            to = from;
            from = from < (STAGES - 1) * Extent::STAGE ? from + Extent::STAGE : 0;
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
    // [row][output] in the order of `sum_at`, over the stages.
    Sum* all = (Sum*)memory;
    store<Extent::OUTS>(all + warp_row * TILES * 8 * Extent::OUTS + warp_out * 32, totals);
    const uint8_t* units = work.weight + matrix::units_at(KIND, work.n_out, n_in);
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
