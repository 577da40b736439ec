// Rows of a table [n_out, n_in] of any kind (matrix.h): by id, blended by weight, and mixed by a softmax over all ids.
//
// embed: grid (n_rows, n_in / 1024, rounded up), block 256. Left to the caller: ids are in the table, and so is the padding's.
// blend: grid (blends), block 256, 128 bytes of shared memory. Left to the caller: ids are in the table, rows in x.
// mix_*: softmax(logits) table in three launches. mix_weights: grid (n_rows), block 512, 128 bytes of shared memory. mix_sums:
// grid (n_in / 64, n_rows / 64, n_out / MIX_CHUNK, each rounded up), block 256, 8192 bytes. mix_join: grid (n_rows, n_in / 1024, rounded up),
// block 256. Sums are over ids in ascending order within chunks of MIX_CHUNK ids, then over chunks.
#include "block.h"
#include "matrix.h"

namespace embed_rows {

constexpr int FLAT = 1024, MIX_CHUNK = 8192, TILE = 64, STEP = 16;

struct Table {
    int kind;
    const uint8_t* data;
    int n_out, n_in;
    __device__ float at(int id, int i) const { return matrix::weight_at(kind, data, n_out, n_in, id, i); }
};

// A row of x that is blended of parts `first..first + n_parts`; row -1: nothing.
struct Blend {
    int row, first, n_parts, keeps_length;
};

// LEAST_BLEND of step.rs.
constexpr float LEAST_BLEND = 1e-6f;

}  // namespace embed_rows

KERNEL __launch_bounds__(256) embed(int kind, const uint8_t* data, int n_out, int n_in, const int* ids, float* out) {
    using namespace embed_rows;
    Table table = {kind, data, n_out, n_in};
    int id = ids[blockIdx.x];
    for (int i = blockIdx.y * FLAT + threadIdx.x; i < min(n_in, (int)(blockIdx.y + 1) * FLAT); i += blockDim.x)
        out[(int64_t)blockIdx.x * n_in + i] = table.at(id, i);
}
EMU_KERNEL(embed)

KERNEL __launch_bounds__(256, 2) blend(float* x, int kind, const uint8_t* data, int n_out, int n_in, const embed_rows::Blend* blends, const int* ids, const float* weights) {
    using namespace embed_rows;
    DYNAMIC_SHARED(words);
    Table table = {kind, data, n_out, n_in};
    Blend blend = blends[blockIdx.x];
    if (blend.row < 0) return;
    x += (int64_t)blend.row * n_in;
    float wanted = 0;
    for (int part = 0; part < blend.n_parts; part++) {
        int id = ids[blend.first + part];
        float weight = weights[blend.first + part], squares = 0;
        // A thread's values are its own throughout.
        for (int i = threadIdx.x; i < n_in; i += blockDim.x) {
            float value = table.at(id, i);
            x[i] = (part > 0 ? x[i] : 0) + value * weight;
            squares = fmaf(value, value, squares);
        }
        if (blend.keeps_length) wanted += weight * sqrtf(block::sum(squares, words));
    }
    if (!blend.keeps_length) return;
    float squares = 0;
    for (int i = threadIdx.x; i < n_in; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    float factor = wanted / fmaxf(sqrtf(block::sum(squares, words)), LEAST_BLEND);
    for (int i = threadIdx.x; i < n_in; i += blockDim.x) x[i] *= factor;
}
EMU_KERNEL(blend)

// Per row of logits [n_rows, n_out]: the largest, and the sum of e^(logit - largest).
KERNEL __launch_bounds__(512) mix_weights(const float* logits, int n_out, float* weights) {
    DYNAMIC_SHARED(words);
    logits += (int64_t)blockIdx.x * n_out;
    float largest = -INFINITE, sum = 0;
    for (int i = threadIdx.x; i < n_out; i += blockDim.x) largest = fmaxf(largest, logits[i]);
    largest = block::largest(largest, words);
    for (int i = threadIdx.x; i < n_out; i += blockDim.x) sum += expf(logits[i] - largest);
    sum = block::sum(sum, words);
    if (threadIdx.x == 0) {
        weights[2 * blockIdx.x] = largest;
        weights[2 * blockIdx.x + 1] = sum;
    }
}
EMU_KERNEL(mix_weights)

// Sums over the ids of a chunk, 64 rows by 64 channels a block, 4 by 4 a thread: sums [chunk][n_rows][n_in].
KERNEL __launch_bounds__(256) mix_sums(const float* logits, const float* weights, int kind, const uint8_t* data, int n_out, int n_in, int n_rows, float* sums) {
    using namespace embed_rows;
    DYNAMIC_SHARED(shared);
    typedef float Line[TILE];
    Line *of_rows = (Line*)shared, *of_table = of_rows + STEP;
    Table table = {kind, data, n_out, n_in};
    int channel0 = blockIdx.x * TILE, row0 = blockIdx.y * TILE, id0 = blockIdx.z * MIX_CHUNK, end = min(n_out, id0 + MIX_CHUNK);
    int channel = threadIdx.x % (TILE / 4) * 4, row = threadIdx.x / (TILE / 4) * 4;
    float own[4][4];
    #pragma unroll
    for (int r = 0; r < 4; r++)
        #pragma unroll
        for (int c = 0; c < 4; c++) own[r][c] = 0;
    for (int from = id0; from < end; from += STEP) {
        for (int i = threadIdx.x; i < STEP * TILE; i += 256) {
            // Neighbouring threads have neighbouring logits.
            int id = from + i % STEP, r = row0 + i / STEP;
            of_rows[i % STEP][i / STEP] = id < end && r < n_rows ? expf(logits[(int64_t)r * n_out + id] - weights[2 * r]) : 0;
        }
        for (int i = threadIdx.x; i < STEP * TILE; i += 256) {
            int id = from + i / TILE, c = channel0 + i % TILE;
            of_table[i / TILE][i % TILE] = id < end && c < n_in ? table.at(id, c) : 0;
        }
        __syncthreads();
        #pragma unroll
        for (int step = 0; step < STEP; step++)
            #pragma unroll
            for (int r = 0; r < 4; r++)
                #pragma unroll
                for (int c = 0; c < 4; c++) own[r][c] = fmaf(of_rows[step][row + r], of_table[step][channel + c], own[r][c]);
        __syncthreads();
    }
    #pragma unroll
    for (int r = 0; r < 4; r++)
        #pragma unroll
        for (int c = 0; c < 4; c++)
            if (row0 + row + r < n_rows && channel0 + channel + c < n_in)
                sums[((int64_t)blockIdx.z * n_rows + row0 + row + r) * n_in + channel0 + channel + c] = own[r][c];
}
EMU_KERNEL(mix_sums)

KERNEL __launch_bounds__(256) mix_join(const float* sums, const float* weights, int n_chunks, int n_in, float* out) {
    using namespace embed_rows;
    int64_t row = blockIdx.x, n_rows = gridDim.x;
    for (int i = blockIdx.y * FLAT + threadIdx.x; i < min(n_in, (int)(blockIdx.y + 1) * FLAT); i += blockDim.x) {
        float sum = 0;
        for (int chunk = 0; chunk < n_chunks; chunk++) sum += sums[(chunk * n_rows + row) * n_in + i];
        out[row * n_in + i] = sum / weights[2 * row + 1];
    }
}
EMU_KERNEL(mix_join)
