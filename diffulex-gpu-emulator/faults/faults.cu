// Kernels that each break one rule, for tests of the checks. Block: 64 threads; shared: 1024 bytes. `x` and `y` have 64 numbers
// for each block of the grid.
#include "device.h"

#define FAULT(name)                               \
    KERNEL name(const float* x, float* y, int n); \
    EMU_KERNEL(name)                              \
    KERNEL name(const float* x, float* y, int n)
#define THREAD int thread = (int)threadIdx.x, at = (int)(blockIdx.x * blockDim.x) + thread
#define SHARED                \
    DYNAMIC_SHARED(memory);   \
    float* shared = (float*)memory

// The right one.
FAULT(fault_none) {
    THREAD;
    SHARED;
    shared[thread] = x[at];
    __syncthreads();
    y[at] = shared[thread ^ 1] + (float)n;
}

FAULT(fault_no_barrier) {
    THREAD;
    SHARED;
    shared[thread] = x[at];
    y[at] = shared[thread ^ 32];
}

FAULT(fault_barrier_of_a_warp_for_a_block) {
    THREAD;
    SHARED;
    shared[thread] = x[at];
    __syncwarp();
    y[at] = shared[thread ^ 32];
}

FAULT(fault_written_while_others_read) {
    THREAD;
    SHARED;
    shared[thread] = x[at];
    __syncthreads();
    float value = shared[thread ^ 1];
    shared[thread] = 0;
    y[at] = value;
}

FAULT(fault_unwritten_shared) {
    THREAD;
    SHARED;
    if (thread < 60) shared[thread] = x[at];
    __syncthreads();
    y[at] = shared[thread];
}

FAULT(fault_beyond_shared) {
    THREAD;
    SHARED;
    shared[thread + 200] = x[at];
    y[at] = 0;
}

FAULT(fault_early_use_of_a_copy) {
    THREAD;
    SHARED;
    if (thread < 16) copy_async(shared + thread * 4, x + (at - thread) + thread * 4, true);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    y[at] = shared[thread];
}

FAULT(fault_copy_of_another_thread) {
    THREAD;
    SHARED;
    if (thread < 16) copy_async(shared + thread * 4, x + (at - thread) + thread * 4, true);
    copy_commit();
    copy_wait<0>();
    y[at] = shared[thread];
}

FAULT(fault_unaligned_copy) {
    THREAD;
    SHARED;
    copy_async(shared, x + 1, true);
    copy_commit();
    copy_wait<0>();
    y[at] = 0;
}

FAULT(fault_end_before_a_copy) {
    THREAD;
    SHARED;
    if (thread < 16) copy_async(shared + thread * 4, x + thread * 4, true);
    y[at] = 0;
}

FAULT(fault_read_behind_the_end) {
    THREAD;
    y[at] = x[at + 1];
}

FAULT(fault_written_before_the_start) {
    THREAD;
    y[at - 1] = x[at];
}

FAULT(fault_wide_read_not_aligned) {
    THREAD;
    if (thread) return;
    float4 four = *(const float4*)(x + 1);
    y[at] = four.x + four.y + four.z + four.w;
}

FAULT(fault_null) {
    THREAD;
    y[at] = ((const float*)nullptr)[at];
}

FAULT(fault_unwritten_device_memory) {
    THREAD;
    y[at] += x[at];
}

FAULT(fault_no_barrier_around_device_memory) {
    THREAD;
    y[at] = x[at];
    float value = __shfl_xor_sync(FULL_WARP, x[at], 1);
    y[at ^ 1] += value;
}

FAULT(fault_blocks_write_the_same) {
    THREAD;
    y[thread] = x[at];
}

FAULT(fault_blocks_read_what_others_write) {
    THREAD;
    ((float*)x)[at] = 1;
    y[at] = x[at + 64 < n ? at + 64 : at];
}

FAULT(fault_plain_beside_atomic) {
    THREAD;
    float* shared_by_blocks = (float*)x;
    if (blockIdx.x == 0) shared_by_blocks[thread] = 1;
    else atomicAdd(&shared_by_blocks[thread], 1);
    y[at] = 0;
}

FAULT(fault_barrier_in_a_branch) {
    THREAD;
    if (thread < 32) __syncthreads();
    y[at] = x[at];
}

FAULT(fault_different_barriers) {
    THREAD;
    if (thread < 32) __syncthreads();
    else
        __syncthreads();
    y[at] = x[at];
}

FAULT(fault_shuffle_in_a_branch) {
    THREAD;
    float value = x[at];
    if (thread & 1) value = __shfl_xor_sync(FULL_WARP, value, 2);
    y[at] = value;
}

FAULT(fault_lanes_at_different_shuffles) {
    THREAD;
    float value = x[at];
    value = thread & 1 ? __shfl_xor_sync(FULL_WARP, value, 2) : __shfl_up_sync(FULL_WARP, value, 2);
    y[at] = value;
}

FAULT(fault_index_of_a_local_array) {
    THREAD;
    float own[4] = {x[at], 1, 2, 3};
    y[at] = own[n >> 4];
}

FAULT(fault_matrix_row_not_aligned) {
    THREAD;
    SHARED;
    for (int i = thread; i < 256; i += 64) shared[i] = x[at];
    __syncthreads();
    uint32_t r[4];
    load_matrix(r, shared + thread * 2);
    y[at] = __uint_as_float(r[0]);
}

// Adds in the order of the threads, which nobody promises.
FAULT(fault_order_of_float_sums) {
    THREAD;
    if (thread == 0) y[at] = 0;
    __syncthreads();
    atomicAdd(&y[at - thread], x[at]);
    if (thread) y[at] = 0;
}
