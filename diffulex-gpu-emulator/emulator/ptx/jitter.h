// What a card may give where the ISA leaves a result open, drawn by the seed DIFFULEX_EMULATOR_JITTER.
#pragma once
#include <cmath>

#include "numbers.h"

namespace emulator::ptx {

// 0: results are the nearest to the true ones.
u64 jitter_seed();

inline u32 jitter_draw(u32 input) {
    u64 x = (jitter_seed() ^ input) * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    return u32((x * 0xd6e8feb86659fd93u) >> 40);
}

// Moves a value by at most `most` ulp. The same input always moves the same way, as on a card: a row alone must equal the row
// in a batch.
inline float moved(float x, u32 input, int most) {
    if (!jitter_seed() || !std::isfinite(x) || x == 0) return x;
    int steps = int(jitter_draw(input) % (2 * most + 1)) - most;
    float result = float_of(bits_of(x) + u32(steps));
    return std::isfinite(result) ? result : x;
}
inline float jittered(float x, u32 input) { return moved(x, input, 2); }
inline float jittered_by_one(float x, u32 input) { return moved(x, input, 1); }

}  // namespace emulator::ptx
