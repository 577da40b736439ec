// Conversions of the PTX ISA (section 9.7.9, cvt and cvta).
#include "forms.h"
#include "numbers.h"

namespace emulator::ptx {

// Floats become integers of the nearest end of the range; a NaN becomes 0.
template <class T, class F> static T clamped(F x) {
    constexpr int bits = sizeof(T) * 8 - (std::is_signed<T>::value ? 1 : 0);
    const F over = std::ldexp(F(1), bits);
    if (x != x) return 0;
    if (x >= over) return std::numeric_limits<T>::max();
    if (x < (std::is_signed<T>::value ? -over : F(0))) return std::numeric_limits<T>::min();
    return T(x);
}

// The upper half of a float, rounded to nearest, ties to even.
static u32 to_bf16(float x) {
    u32 bits = bits_of(x);
    if (x != x) return CANONICAL_NAN >> 16;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// binary16 has 5 bits of exponent and 10 of significand.
static u32 to_f16(float x) {
    u32 sign = bits_of(x) >> 16 & 0x8000;
    if (x != x) return 0x7fff;
    double size = std::fabs((double)x);
    if (size >= 65520) return sign | 0x7c00;
    // Units of the last place: 2^-24 below the least normal number.
    int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    double units = std::nearbyint(std::ldexp(size, 10 - exponent));
    return sign | u32(units + (exponent + 14) * 1024.0);
}
static float from_f16(u32 bits) {
    int exponent = bits >> 10 & 31;
    u32 significand = bits & 0x3ff;
    float size = exponent == 31 ? (significand ? float_of(CANONICAL_NAN) : INFINITY) : exponent == 0 ? std::ldexp((float)significand, -24) : std::ldexp((float)(significand | 0x400), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

static float saturated(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

#define CONVERT(name, L, D, A, ...) forms.add("cvt." name, L, PTX_RUN1(D, A, __VA_ARGS__));

// From floats, by rounding: rni to the nearest, ties to even; rzi towards zero; rmi down; rpi up.
#define TO_INTEGER(suffix, L, D, A)                               \
    CONVERT("rni." suffix, L, D, A, clamped<D>(std::nearbyint(a))) \
    CONVERT("rzi." suffix, L, D, A, clamped<D>(std::trunc(a)))     \
    CONVERT("rmi." suffix, L, D, A, clamped<D>(std::floor(a)))     \
    CONVERT("rpi." suffix, L, D, A, clamped<D>(std::ceil(a)))

void add_conversions(Forms& forms) {
    // Between integers: cut, or extended by the sign of the source's type. A source may lie in a wider register.
    CONVERT("s32.s8", "Ww", s32, u32, (s32)(int8_t)a)
    CONVERT("s32.s8", "Wh", s32, u32, (s32)(int8_t)a)
    CONVERT("u32.u8", "Ww", u32, u32, a & 0xff)
    CONVERT("u32.u8", "Wh", u32, u32, a & 0xff)
    CONVERT("s32.s16", "Wh", s32, u32, (s32)(s16)a)
    CONVERT("s32.s16", "Ww", s32, u32, (s32)(s16)a)
    CONVERT("u32.u16", "Wh", u32, u32, a & 0xffff)
    CONVERT("u32.u16", "Ww", u32, u32, a & 0xffff)
    CONVERT("u16.u32", "Hw", u32, u32, a & 0xffff)
    CONVERT("s16.s8", "Hh", u32, u32, u32((s16)(int8_t)a) & 0xffff)
    CONVERT("s16.s8", "Hw", u32, u32, u32((s16)(int8_t)a) & 0xffff)
    CONVERT("u16.u8", "Hh", u32, u32, a & 0xff)
    CONVERT("u64.u16", "Dh", u64, u32, (u64)(a & 0xffff))
    CONVERT("u16.u64", "Hd", u32, u64, u32(a) & 0xffff)
    CONVERT("s64.s32", "Dw", s64, s32, (s64)a)
    CONVERT("u64.u32", "Dw", u64, u32, (u64)a)
    CONVERT("u32.u64", "Wd", u32, u64, (u32)a)
    CONVERT("s32.s64", "Wd", u32, u64, (u32)a)
    // Between floats.
    CONVERT("f64.f32", "Dw", double, float, (double)a)
    CONVERT("rn.f32.f64", "Wd", float, double, (float)a)
    CONVERT("f32.f16", "Wh", float, u32, from_f16(a))
    CONVERT("rn.f16.f32", "Hw", u32, float, to_f16(a))
    CONVERT("sat.f32.f32", "Ww", float, float, saturated(a))
    // The first source is the upper half.
    forms.add("cvt.rn.bf16x2.f32", "Www", PTX_RUN2(u32, float, float, to_bf16(a) << 16 | to_bf16(b)));
    // From integers.
    CONVERT("rn.f32.s16", "Wh", float, u32, (float)(s16)a)
    CONVERT("rn.f32.u16", "Wh", float, u32, (float)(a & 0xffff))
    CONVERT("rn.f32.s32", "Ww", float, s32, (float)a)
    CONVERT("rn.f32.u32", "Ww", float, u32, (float)a)
    CONVERT("rn.f32.s64", "Wd", float, s64, (float)a)
    CONVERT("rn.f32.u64", "Wd", float, u64, (float)a)
    CONVERT("rn.f64.s32", "Dw", double, s32, (double)a)
    CONVERT("rn.f64.u32", "Dw", double, u32, (double)a)
    CONVERT("rn.f64.s64", "Dd", double, s64, (double)a)
    CONVERT("rn.f64.u64", "Dd", double, u64, (double)a)
    TO_INTEGER("s32.f32", "Ww", s32, float)
    TO_INTEGER("u32.f32", "Ww", u32, float)
    TO_INTEGER("s64.f32", "Dw", s64, float)
    TO_INTEGER("u64.f32", "Dw", u64, float)
    TO_INTEGER("s32.f64", "Wd", s32, double)
    TO_INTEGER("u32.f64", "Wd", u32, double)
    TO_INTEGER("s64.f64", "Dd", s64, double)
    TO_INTEGER("u64.f64", "Dd", u64, double)
    // Addresses: global ones are generic ones; those of shared memory are offsets from its window.
    forms.add("cvta.to.global.u64", "Dd", PTX_RUN1(u64, u64, a));
    forms.add("cvta.global.u64", "Dd", PTX_RUN1(u64, u64, a));
    forms.add("cvta.shared.u64", "Dd", PTX_RUN1(u64, u64, a + SHARED_WINDOW));
    forms.add("cvta.to.shared.u64", "Dd", PTX_RUN1(u64, u64, a - SHARED_WINDOW));
}

}  // namespace emulator::ptx
