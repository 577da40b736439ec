// y = x W^T + bias with weights and inputs in bf16 and sums in f32; see product.h for extents and arguments (no `x_scales`).
#include "product.h"

struct Bf16 {
    static constexpr int KIND = matrix::BF16;
    typedef float Sum;

    template <int SLICES, int TILES>
    static __device__ __forceinline__ void multiply(float (&sums)[SLICES][TILES][4], const uint8_t* weights, const uint8_t* rows, int n_tiles) {
        int lane = threadIdx.x & 31;
        uint4 a[SLICES][4];
        #pragma unroll
        for (int slice = 0; slice < SLICES; slice++)
            #pragma unroll
            for (int step = 0; step < 4; step++)
                a[slice][step] = *(const uint4*)(weights + slice * product::slice_bytes(KIND) + step * 512 + lane * 16);
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (tile >= n_tiles) continue;
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                // Two steps of 16 inputs.
                uint32_t b[4];
                load_matrix(b, rows + product::place<8>(tile * 8 + lane % 8, half * 4 + lane / 8));
                #pragma unroll
                for (int step = 0; step < 2; step++)
                    #pragma unroll
                    for (int slice = 0; slice < SLICES; slice++)
                        mma_bf16(sums[slice][tile], (const uint32_t*)&a[slice][half * 2 + step], b + 2 * step);
            }
        }
    }

    static __device__ __forceinline__ float finish(float sum, const uint8_t*, int, float) { return sum; }
};

PRODUCTS(product_bf16, Bf16)
