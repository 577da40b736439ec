// Values of floats that several instructions share.
#pragma once
#include <cmath>
#include <cstring>

#include "program.h"

namespace emulator::ptx {

// What instructions give that have no number to give (section 9.7.3).
constexpr u32 CANONICAL_NAN = 0x7fffffff;

inline float float_of(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline double double_of(u64 bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
inline u64 bits_of(double x) {
    u64 bits;
    memcpy(&bits, &x, 8);
    return bits;
}
// Subnormal numbers become zeros of their sign.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

}  // namespace emulator::ptx
