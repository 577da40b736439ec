// Sums and maxima over the threads of a block, in an order that the number of threads fixes. Every thread gets the result.
#pragma once
#include "device.h"

namespace block {

// Words of shared memory that a reduction needs: one per warp.
constexpr int WORDS = 32;

template <class T, class Join> DEVICE T reduce(T value, T* words, Join join) {
    #pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) value = join(value, __shfl_xor_sync(FULL_WARP, value, bits));
    // The words may still be read from the reduction before.
    __syncthreads();
    if ((threadIdx.x & 31) == 0) words[threadIdx.x >> 5] = value;
    __syncthreads();
    value = words[0];
    for (int warp = 1; warp < (int)(blockDim.x >> 5); warp++) value = join(value, words[warp]);
    return value;
}
DEVICE float sum(float value, void* words) {
    return reduce(value, (float*)words, [](float a, float b) { return a + b; });
}
DEVICE uint32_t largest(uint32_t value, void* words) {
    return reduce(value, (uint32_t*)words, [](uint32_t a, uint32_t b) { return max(a, b); });
}
// NaN is left out.
DEVICE float largest(float value, void* words) {
    return reduce(value, (float*)words, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace block
