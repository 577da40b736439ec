// What the kernels are written against. NVRTC turns them into PTX; any other compiler gets `emulator.h` of
// diffulex-gpu-emulator, with which the same sources run on the CPU. Inline assembly is only here.
//
// NVRTC compiles with --fmad=false, so that a product and a sum are two roundings on both sides: write `fmaf` where one is
// meant. Divisions and square roots round correctly, and numbers below the least normal one are kept.
#pragma once

#ifdef __CUDACC_RTC__

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

// A kernel: `KERNEL __launch_bounds__(128) name(arguments) { .. }`, and behind it `EMU_KERNEL(name)`, by which the emulator
// finds it.
#define KERNEL extern "C" __global__ void
#define EMU_KERNEL(name)
#define DEVICE __device__ __forceinline__
// The shared memory that the launch asks for, aligned to 128 bytes.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

DEVICE uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Fragments of the products below, for lane l with group = l / 4 and quad = l % 4; "row" is of A and D, "column" of B and D:
//   D  d[e]: row group + 8 (e / 2), column 2 quad + e % 2, for e in 0..4.

// D[16x8] += A[16x16] B[16x8] in bf16 with f32 sums.
//   A  a[r]: row group + 8 (r % 2), k = 2 quad + 8 (r / 2) in the low half and the next k in the high half.
//   B  b[r]: column group, k = 2 quad + 8 r in the low half and the next k in the high half.
DEVICE void mma_bf16(float* d, const uint32_t* a, const uint32_t* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// D[16x8] += A[16x32] B[32x8], signed bytes with 32-bit sums.
//   A  a[r]: row group + 8 (r % 2), k = 4 quad + 16 (r / 2) and the next three, from the low byte up.
//   B  b[r]: column group, k = 4 quad + 16 r and the next three.
DEVICE void mma_int8(int* d, const uint32_t* a, const uint32_t* b) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// D[16x8] += A[16x16] B[16x8], signed bytes with 32-bit sums: for groups of 16.
//   A  a[r]: row group + 8 r, k = 4 quad and the next three.   B  b: column group, k = 4 quad and the next three.
DEVICE void mma_int8_k16(int* d, const uint32_t* a, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Four matrices of 8 x 8 16-bit numbers. Lane l gives the address of row l % 8 of matrix l / 8: 16 bytes of shared memory,
// aligned. Lane l gets in r[m] of matrix m: row l / 4, columns 2 (l % 4) and the next.
DEVICE void load_matrix(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, transposed: lane l gets rows 2 (l % 4) and the next of column l / 4.
DEVICE void load_matrix_transposed(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Starts a copy of 16 bytes from device memory to shared memory, both aligned to 16; zeros where `is_there` is false (`from`
// is not read then, and must not be null).
DEVICE void copy_async(void* to, const void* from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared_address(to)), "l"(__cvta_generic_to_global(from)),
                 "r"(is_there ? 16 : 0)
                 : "memory");
}
// Closes the group of the copies that this thread started since the last commit.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups are on their way. Other threads need a barrier, too.
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Two numbers as bf16, to the nearest, ties to even; `low` in the low half.
DEVICE uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
// IEEE half precision, to the nearest, ties to even.
DEVICE uint16_t to_half(float x) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0,%1;" : "=h"(h) : "f"(x));
    return h;
}
DEVICE float from_half(uint16_t h) {
    float x;
    asm("cvt.f32.f16 %0,%1;" : "=f"(x) : "h"(h));
    return x;
}
// 2^x to about 2 units in the last place; 0 where the result is below the least normal number.
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}
// c + the sum of the products of four signed bytes.
DEVICE int dp4a(int a, int b, int c) {
    int d;
    asm("dp4a.s32.s32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

#else
#include "emulator.h"
#endif

#define FULL_WARP 0xffffffffu
#define INFINITE __uint_as_float(0x7f800000u)
// Below every score; finite, so that a difference of two is not NaN.
#define NO_SCORE (-1e30f)

DEVICE float from_bf16(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }
// To the nearest, ties to even.
DEVICE uint16_t to_bf16(float x) { return (uint16_t)pack_bf16(x, 0); }

// Unsigned integers in the order of the numbers: for atomicMax and sorting. -0 is below +0; NaNs are at both ends, by sign.
DEVICE uint32_t to_ordered(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE float from_ordered(uint32_t ordered) { return __uint_as_float(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered); }
