// y = x W^T + bias with weights and inputs in bf16 and sums in f32; see product.h for extents and arguments (no `x_scales`).
#include "product.h"

struct Bf16 {
    static constexpr int KIND = matrix::BF16;
    typedef float Sum;

    template <int SLICES, int TILES>
    static __device__ __forceinline__ void multiply(float (&sums)[SLICES][TILES][4], const uint8_t* weights, const uint8_t* rows, int) {
        // Tiles and steps of 16 inputs whose operands are loaded together: sums that do not wait for each other are side by side.
        constexpr int TOGETHER = TILES < 4 ? TILES : 4, HALVES = TILES > 2 ? 1 : 2;
        int lane = threadIdx.x & 31;
        uint4 a[SLICES][4];
        #pragma unroll
        for (int slice = 0; slice < SLICES; slice++)
            #pragma unroll
            for (int step = 0; step < 4; step++)
                a[slice][step] = *(const uint4*)(weights + slice * product::slice_bytes(KIND) + step * 512 + lane * 16);
        #pragma unroll
        for (int first = 0; first < TILES; first += TOGETHER) {
            #pragma unroll
            for (int half = 0; half < 2; half += HALVES) {
                uint32_t b[TOGETHER][4 * HALVES];
                #pragma unroll
                for (int i = 0; i < TOGETHER * HALVES; i++) {
                    const uint8_t* of_tile = rows + (first + i / HALVES) * 8 * product::row_bytes(KIND);
                    load_matrix(b[i / HALVES] + i % HALVES * 4, of_tile + product::place<8>(lane % 8, (half + i % HALVES) * 4 + lane / 8));
                }
                #pragma unroll
                for (int step = 0; step < 2 * HALVES; step++)
                    #pragma unroll
                    for (int tile = 0; tile < TOGETHER; tile++)
                        #pragma unroll
                        for (int slice = 0; slice < SLICES; slice++)
                            mma_bf16(sums[slice][first + tile], (const uint32_t*)&a[slice][half * 2 + step], b[tile] + 2 * step);
            }
        }
    }

    static __device__ __forceinline__ float finish(float sum, const uint8_t*, int, float) { return sum; }
};

PRODUCTS(product_bf16, Bf16)
