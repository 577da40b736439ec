// Every wrapper of device.h and every meeting of threads, one block each, with inputs and results in plain arrays: what a GPU and
// the emulator must agree on before anything else is compared. diffulex-gpu-emulator/tests has the known values.
// Grid: 1. Block: 32 threads, or as noted.
#include "device.h"

// d [16, 8] += a [16, 16] b [8, 16] (row-major, b by its columns), bf16 and f32.
KERNEL __launch_bounds__(32) prim_mma_bf16(const uint32_t* a, const uint32_t* b, float* d) {
    int lane = threadIdx.x, group = lane >> 2, quad = lane & 3;
    uint32_t left[4], right[2];
    float sums[4];
    for (int r = 0; r < 4; r++) left[r] = a[(group + (r & 1) * 8) * 8 + quad + (r >> 1) * 4];
    for (int r = 0; r < 2; r++) right[r] = b[group * 8 + quad + r * 4];
    for (int e = 0; e < 4; e++) sums[e] = d[(group + (e >> 1) * 8) * 8 + quad * 2 + (e & 1)];
    mma_bf16(sums, left, right);
    for (int e = 0; e < 4; e++) d[(group + (e >> 1) * 8) * 8 + quad * 2 + (e & 1)] = sums[e];
}
EMU_KERNEL(prim_mma_bf16)

// d [16, 8] += a [16, 32] b [8, 32], signed bytes and 32-bit integers.
KERNEL __launch_bounds__(32) prim_mma_int8(const uint32_t* a, const uint32_t* b, int* d) {
    int lane = threadIdx.x, group = lane >> 2, quad = lane & 3;
    uint32_t left[4], right[2];
    int sums[4];
    for (int r = 0; r < 4; r++) left[r] = a[(group + (r & 1) * 8) * 8 + quad + (r >> 1) * 4];
    for (int r = 0; r < 2; r++) right[r] = b[group * 8 + quad + r * 4];
    for (int e = 0; e < 4; e++) sums[e] = d[(group + (e >> 1) * 8) * 8 + quad * 2 + (e & 1)];
    mma_int8(sums, left, right);
    for (int e = 0; e < 4; e++) d[(group + (e >> 1) * 8) * 8 + quad * 2 + (e & 1)] = sums[e];
}
EMU_KERNEL(prim_mma_int8)

// d [16, 8] += a [16, 16] b [8, 16], signed bytes and 32-bit integers.
KERNEL __launch_bounds__(32) prim_mma_int8_k16(const uint32_t* a, const uint32_t* b, int* d) {
    int lane = threadIdx.x, group = lane >> 2, quad = lane & 3;
    uint32_t left[2] = {a[group * 4 + quad], a[(group + 8) * 4 + quad]};
    int sums[4];
    for (int e = 0; e < 4; e++) sums[e] = d[(group + (e >> 1) * 8) * 8 + quad * 2 + (e & 1)];
    mma_int8_k16(sums, left, b[group * 4 + quad]);
    for (int e = 0; e < 4; e++) d[(group + (e >> 1) * 8) * 8 + quad * 2 + (e & 1)] = sums[e];
}
EMU_KERNEL(prim_mma_int8_k16)

// x [32, 8] 16-bit numbers, four matrices of 8 x 8, through shared memory by asynchronous copies; row 31 is not copied but zeros.
// Lane l's four registers of each kind of load go to plain [32, 4] and transposed [32, 4]. Shared: 512 bytes.
KERNEL __launch_bounds__(32) prim_load_matrix(const uint16_t* x, uint32_t* plain, uint32_t* transposed) {
    DYNAMIC_SHARED(memory);
    uint16_t* rows = (uint16_t*)memory;
    int lane = threadIdx.x;
    copy_async(rows + lane * 8, x + lane * 8, lane < 31);
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    uint32_t r[4];
    load_matrix(r, rows + lane * 8);
    for (int m = 0; m < 4; m++) plain[lane * 4 + m] = r[m];
    load_matrix_transposed(r, rows + lane * 8);
    for (int m = 0; m < 4; m++) transposed[lane * 4 + m] = r[m];
}
EMU_KERNEL(prim_load_matrix)

// 64 threads copy x [3, 64, 4] in three groups and add them up as they come: y [64, 4]. Shared: 3072 bytes.
KERNEL __launch_bounds__(64) prim_copy_groups(const float* x, float* y) {
    DYNAMIC_SHARED(memory);
    float* stages = (float*)memory;
    int thread = threadIdx.x;
    for (int stage = 0; stage < 3; stage++) {
        copy_async(stages + (stage * 64 + thread) * 4, x + (stage * 64 + thread) * 4, true);
        copy_commit();
    }
    float sums[4] = {0, 0, 0, 0};
    // Each thread reads what its neighbour has copied.
    const float* neighbour = stages + (thread ^ 33) * 4;
    copy_wait<2>();
    __syncthreads();
    for (int i = 0; i < 4; i++) sums[i] += neighbour[i];
    copy_wait<1>();
    __syncthreads();
    for (int i = 0; i < 4; i++) sums[i] += neighbour[64 * 4 + i];
    copy_wait<0>();
    __syncthreads();
    for (int i = 0; i < 4; i++) y[thread * 4 + i] = sums[i] + neighbour[2 * 64 * 4 + i];
}
EMU_KERNEL(prim_copy_groups)

// Conversions and arithmetic of x [n]: results [n, 12] as bits. Any grid, any block.
KERNEL __launch_bounds__(128) prim_arithmetic(const float* x, uint32_t* results, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t* to = results + i * 12;
    float value = x[i];
    to[0] = pack_bf16(value, -value);
    to[1] = to_bf16(value);
    to[2] = __float_as_uint(from_bf16((uint16_t)(i * 517)));
    to[3] = to_half(value);
    to[4] = __float_as_uint(from_half((uint16_t)(i * 517)));
    to[5] = __float_as_uint(fast_exp2(value));
    to[6] = to_ordered(value);
    to[7] = __float_as_uint(from_ordered(to_ordered(value)));
    to[8] = (uint32_t)dp4a((int)__float_as_uint(value), i * 0x01030507, i);
    to[9] = __float_as_uint(__fdiv_rn(value, 3.0f));
    to[10] = (uint32_t)__float2int_rn(value);
    // Two roundings: NVRTC must not make one of them.
    to[11] = __float_as_uint(value * value + value);
}
EMU_KERNEL(prim_arithmetic)

// 96 threads. Shuffles and votes of x [96]: results [96, 8].
KERNEL __launch_bounds__(96) prim_shuffles(const int* x, int* results) {
    int thread = threadIdx.x, value = x[thread];
    int* to = results + thread * 8;
    to[0] = __shfl_sync(FULL_WARP, value, 5);
    to[1] = __shfl_xor_sync(FULL_WARP, value, 16);
    to[2] = __shfl_up_sync(FULL_WARP, value, 3);
    to[3] = __shfl_down_sync(FULL_WARP, value, 3);
    to[4] = (int)__ballot_sync(FULL_WARP, value & 1);
    to[5] = __any_sync(FULL_WARP, value > 90) * 2 + __all_sync(FULL_WARP, value >= 0);
    to[6] = __syncthreads_count(value & 1);
    to[7] = __syncthreads_or(value == 95) * 2 + __syncthreads_and(value < 95);
}
EMU_KERNEL(prim_shuffles)

// Four blocks of 64 threads count x [256] into sums [4]: of all, of the even ones, the largest, and how many are below 1000.
KERNEL __launch_bounds__(64) prim_atomics(const uint64_t* x, uint64_t* sums) {
    DYNAMIC_SHARED(memory);
    unsigned* below = (unsigned*)memory;
    uint64_t value = x[blockIdx.x * 64 + threadIdx.x];
    if (threadIdx.x == 0) *below = 0;
    __syncthreads();
    atomicAdd(&sums[0], value);
    if (!(value & 1)) atomicAdd(&sums[1], value);
    atomicMax(&sums[2], value);
    if (value < 1000) atomicAdd(below, 1u);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&sums[3], (uint64_t)*below);
}
EMU_KERNEL(prim_atomics)
