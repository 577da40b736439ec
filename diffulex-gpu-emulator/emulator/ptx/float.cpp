// Floating point of the PTX ISA (sections 9.7.3 and 9.7.5). Compiled without contraction; rounding is to nearest, and subnormal
// numbers are kept, unless the opcode has .ftz.
#include <cfenv>

#include "forms.h"
#include "jitter.h"
#include "numbers.h"

namespace emulator::ptx {

// One NaN loses against a number; -0 is below +0.
static float least(float a, float b) {
    if (a != a && b != b) return float_of(CANONICAL_NAN);
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return float_of(bits_of(a) | bits_of(b));
    return a < b ? a : b;
}
static float greatest(float a, float b) {
    if (a != a && b != b) return float_of(CANONICAL_NAN);
    if (a != a) return b;
    if (b != b) return a;
    if (a == b) return float_of(bits_of(a) & bits_of(b));
    return a < b ? b : a;
}

// Towards minus infinity. The compiler does not know of the mode, but may move nothing that is in memory over a call.
static void fma_down(Warp& warp, const Instruction& in) {
    float* d = warp.lanes<float>(in.at[0]);
    const float *a = warp.lanes<float>(in.at[1]), *b = warp.lanes<float>(in.at[2]), *c = warp.lanes<float>(in.at[3]);
    fesetround(FE_DOWNWARD);
    for_lanes(warp.mask, [&](u32 i) {
        volatile float result = std::fma(a[i], b[i], c[i]);
        d[i] = result;
    });
    fesetround(FE_TONEAREST);
}

// Within 2^-22 of the true value, says the ISA, and exactly 1 for zeros; here the nearest float, moved by the jitter.
static float power_of_two(float x) {
    float in = flushed(x);
    return in == 0 ? 1 : flushed(jittered(exp2f(in), bits_of(in)));
}
// At most 1 ulp from the nearest.
static float reciprocal(float x) {
    float in = flushed(x);
    return flushed(in == 0 || std::isinf(in) ? 1 / in : jittered_by_one(1 / in, bits_of(in)));
}
// The upper 32 bits of the double alone are read, and written.
static double gross_reciprocal(double x) {
    double in = double_of(bits_of(x) & 0xffffffff00000000u);
    if (std::fabs(in) < 0x1p-1022) in = std::copysign(0.0, in);
    double result = 1 / in;
    if (std::fabs(result) < 0x1p-1022) result = std::copysign(0.0, result);
    return double_of(bits_of(result) & 0xffffffff00000000u);
}

template <class A, class F> static void each(Warp& warp, const Instruction& in, F f) {
    A* d = warp.lanes<A>(in.at[0]);
    const A* a = warp.lanes<A>(in.at[1]);
    for_lanes(warp.mask, [&](u32 i) { d[i] = f(a[i]); });
}

#define FLOATS(suffix, T, L1, L2, L3)                                                   \
    forms.add("add.rn." suffix, L2, PTX_RUN2(T, T, T, a + b));                          \
    forms.add("sub.rn." suffix, L2, PTX_RUN2(T, T, T, a - b));                          \
    forms.add("mul.rn." suffix, L2, PTX_RUN2(T, T, T, a* b));                           \
    forms.add("div.rn." suffix, L2, PTX_RUN2(T, T, T, a / b));                          \
    forms.add("fma.rn." suffix, L3, PTX_RUN3(T, T, T, T, std::fma(a, b, c)));           \
    forms.add("neg." suffix, L1, PTX_RUN1(T, T, -a));                                   \
    forms.add("abs." suffix, L1, PTX_RUN1(T, T, std::fabs(a)));                         \
    forms.add("rcp.rn." suffix, L1, PTX_RUN1(T, T, T(1) / a));                          \
    forms.add("sqrt.rn." suffix, L1, PTX_RUN1(T, T, std::sqrt(a)));

// Ordered comparisons are false with a NaN, those whose names end in u are true.
#define COMPARE(name, T, L, ...) forms.add("setp." name, L, PTX_RUN2(u32, T, T, (__VA_ARGS__) ? ~0u : 0u));
#define COMPARISONS(suffix, T, L)                  \
    COMPARE("eq." suffix, T, L, a == b)            \
    COMPARE("ne." suffix, T, L, a < b || a > b)    \
    COMPARE("lt." suffix, T, L, a < b)             \
    COMPARE("le." suffix, T, L, a <= b)            \
    COMPARE("gt." suffix, T, L, a > b)             \
    COMPARE("ge." suffix, T, L, a >= b)            \
    COMPARE("equ." suffix, T, L, !(a < b || a > b)) \
    COMPARE("neu." suffix, T, L, a != b)           \
    COMPARE("ltu." suffix, T, L, !(a >= b))        \
    COMPARE("leu." suffix, T, L, !(a > b))         \
    COMPARE("gtu." suffix, T, L, !(a <= b))        \
    COMPARE("geu." suffix, T, L, !(a < b))         \
    COMPARE("num." suffix, T, L, a == a && b == b) \
    COMPARE("nan." suffix, T, L, a != a || b != b)

void add_float(Forms& forms) {
    FLOATS("f32", float, "Ww", "Www", "Wwww")
    FLOATS("f64", double, "Dd", "Ddd", "Dddd")
    forms.add("min.f32", "Www", PTX_RUN2(float, float, float, least(a, b)));
    forms.add("max.f32", "Www", PTX_RUN2(float, float, float, greatest(a, b)));
    forms.add("fma.rm.f32", "Wwww", fma_down);
    forms.add("ex2.approx.ftz.f32", "Ww", [](Warp& w, const Instruction& in) { each<float>(w, in, power_of_two); });
    forms.add("rcp.approx.ftz.f32", "Ww", [](Warp& w, const Instruction& in) { each<float>(w, in, reciprocal); });
    forms.add("rcp.approx.ftz.f64", "Dd", [](Warp& w, const Instruction& in) { each<double>(w, in, gross_reciprocal); });
    COMPARISONS("f32", float, "Pww")
    COMPARISONS("f64", double, "Pdd")
}

}  // namespace emulator::ptx
