// CUDA C for the CPU: the words that kernels use beside those of device.h. A thread of a block is a fiber (fibers.h), blocks run
// one at a time (launch.h), and loads and stores are checked (shadow.h) in objects compiled with -fsanitize=thread.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

using std::isfinite;
using std::isinf;
using std::isnan;

struct Index {
    unsigned x, y, z;
};
// Constant within a fiber, so compilers may keep them and need not check their loads; launch.cpp, which defines them, changes
// them between fibers.
extern const Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __global__
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("emulator_shared")))
#define KERNEL extern "C" void
#define DEVICE static inline
#define DYNAMIC_SHARED(name) unsigned char* const name = emulator::dynamic_shared()

namespace emulator {

unsigned char* dynamic_shared();
int lane();

// A meeting of the lanes in `mask`: the last to come runs `all` on what every lane brought (null for lanes outside).
// All lanes must meet at the same `place`.
typedef void (*All)(void** lanes);
void meet(unsigned mask, const char* place, void* brought, All all);
void sync_warp(unsigned mask);
// `line` is where the barrier stands: all threads must be at the same one.
void sync_block(int line);
// As above; each thread gets the number of threads that brought a non-zero `predicate`.
int sync_block_count(int line, bool predicate);

void copy_async(void* to, const void* from, bool is_there);
void copy_commit();
void copy_wait(int n_pending);

// Checks an atomic access, for which the compiler calls no hook of ours.
void check_atomic(const void* p, int n_bytes);

template <class T, class Source> T shuffle(unsigned mask, T value, const char* place, Source source) {
    struct Brought {
        T value, result;
        int from;
    } mine = {value, value, source(lane())};
    meet(mask, place, &mine, [](void** lanes) {
        for (int i = 0; i < 32; i++) {
            auto* to = (Brought*)lanes[i];
            if (!to || to->from < 0 || to->from > 31) continue;  // Outside of the warp: keeps its own value.
            auto* from = (Brought*)lanes[to->from];
            if (from) to->result = from->value;
            else memset((void*)&to->result, 0xff, sizeof(T));  // Undefined on a device.
        }
    });
    return mine.result;
}

template <class T, class F> __attribute__((no_sanitize("thread"), noinline)) T atomically(T* p, F f) {
    check_atomic(p, sizeof(T));
    T old = *p;
    *p = f(old);
    return old;
}

// A kernel by its name, with the sizes of its arguments; `call` unpacks the array of pointers that cuLaunchKernel gets.
typedef void (*Call)(void** arguments);
void add_kernel(const char* name, Call call, const int* sizes, int n_arguments);

template <auto kernel> struct Registration;
template <class... A, void (*kernel)(A...)> struct Registration<kernel> {
    explicit Registration(const char* name) {
        static const int sizes[] = {int(sizeof(A))..., 0};
        add_kernel(name, [](void** arguments) { call(arguments, std::index_sequence_for<A...>{}); }, sizes, sizeof...(A));
    }
    // Unchecked: the arguments lie in host memory.
    template <size_t... I> __attribute__((no_sanitize("thread"))) static void call(void** arguments, std::index_sequence<I...>) { kernel(*(A*)arguments[I]...); }
};

}  // namespace emulator

#define EMU_KERNEL(name) static emulator::Registration<name> registration_of_##name(#name);

// Meetings.
#define __syncthreads() emulator::sync_block(__LINE__)
#define __syncthreads_count(predicate) emulator::sync_block_count(__LINE__, (predicate) != 0)
#define __syncthreads_or(predicate) (emulator::sync_block_count(__LINE__, (predicate) != 0) != 0)
#define __syncthreads_and(predicate) (emulator::sync_block_count(__LINE__, (predicate) == 0) == 0)
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::sync_warp(mask); }
template <class T> T __shfl_sync(unsigned mask, T value, int from) {
    return emulator::shuffle(mask, value, "__shfl_sync", [=](int) { return from & 31; });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return emulator::shuffle(mask, value, "__shfl_xor_sync", [=](int lane) { return lane ^ bits; });
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned n) {
    return emulator::shuffle(mask, value, "__shfl_up_sync", [=](int lane) { return lane - (int)n; });
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned n) {
    return emulator::shuffle(mask, value, "__shfl_down_sync", [=](int lane) { return lane + (int)n; });
}
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Atomics. The second argument converts, as it does for NVRTC's overloads.
template <class T> using Same = typename std::common_type<T>::type;
template <class T> T atomicAdd(T* p, Same<T> x) { return emulator::atomically(p, [=](T old) { return T(old + x); }); }
template <class T> T atomicMax(T* p, Same<T> x) { return emulator::atomically(p, [=](T old) { return old < x ? x : old; }); }
template <class T> T atomicMin(T* p, Same<T> x) { return emulator::atomically(p, [=](T old) { return x < old ? x : old; }); }
template <class T> T atomicOr(T* p, Same<T> x) { return emulator::atomically(p, [=](T old) { return T(old | x); }); }
template <class T> T atomicAnd(T* p, Same<T> x) { return emulator::atomically(p, [=](T old) { return T(old & x); }); }
template <class T> T atomicExch(T* p, Same<T> x) { return emulator::atomically(p, [=](T) { return x; }); }
template <class T> T atomicCAS(T* p, Same<T> is, Same<T> x) { return emulator::atomically(p, [=](T old) { return old == is ? x : old; }); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// Arithmetic.
inline float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
inline uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float((uint32_t)bits); }
inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
template <class A, class B> auto min(A a, B b) { typedef typename std::common_type<A, B>::type T; return (T)b < (T)a ? (T)b : (T)a; }
template <class A, class B> auto max(A a, B b) { typedef typename std::common_type<A, B>::type T; return (T)a < (T)b ? (T)b : (T)a; }
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T x) { *p = x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
// Conversions saturate, and NaN gives 0.
template <class T> T saturated(double x) {
    constexpr double over = 2.0 * (double)(T(1) << (sizeof(T) * 8 - 2)) * (std::is_signed<T>::value ? 1 : 2);
    constexpr double least = std::is_signed<T>::value ? -over : 0;
    return x != x ? T(0) : x >= over ? (std::is_signed<T>::value ? T(~(T(1) << (sizeof(T) * 8 - 1))) : T(~T(0))) : x < least ? T(least) : T(x);
}
inline int __float2int_rn(float x) { return saturated<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return saturated<int>(truncf(x)); }
inline int __float2int_rd(float x) { return saturated<int>(floorf(x)); }
inline unsigned __float2uint_rn(float x) { return saturated<unsigned>(nearbyintf(x)); }
inline unsigned __float2uint_rz(float x) { return saturated<unsigned>(truncf(x)); }
inline long long __float2ll_rn(float x) { return saturated<long long>(nearbyintf(x)); }
inline unsigned long long __float2ull_rn(float x) { return saturated<unsigned long long>(nearbyintf(x)); }
inline unsigned long long __double2ull_rn(double x) { return saturated<unsigned long long>(nearbyint(x)); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __ull2float_rn(unsigned long long x) { return (float)x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)(((uint64_t)x * y) >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) { return (unsigned long long)(((unsigned __int128)x * y) >> 64); }
unsigned __byte_perm(unsigned low, unsigned high, unsigned selector);

// The wrappers of device.h.
void mma_bf16(float* d, const uint32_t* a, const uint32_t* b);
void mma_int8(int* d, const uint32_t* a, const uint32_t* b);
void mma_int8_k16(int* d, const uint32_t* a, uint32_t b);
void load_matrix(uint32_t* r, const void* row);
void load_matrix_transposed(uint32_t* r, const void* row);
inline void copy_async(void* to, const void* from, bool is_there) { emulator::copy_async(to, from, is_there); }
inline void copy_commit() { emulator::copy_commit(); }
template <int N> void copy_wait() { emulator::copy_wait(N); }
uint32_t pack_bf16(float low, float high);
uint16_t to_half(float x);
float from_half(uint16_t h);
float fast_exp2(float x);
int dp4a(int a, int b, int c);
