// Instructions of the device that are no operators of C++.
#include "emulator.h"

static uint32_t rounded_to_bf16(float x) {
    uint32_t bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
uint32_t pack_bf16(float low, float high) { return rounded_to_bf16(low) | rounded_to_bf16(high) << 16; }

uint16_t to_half(float x) {
    uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;
    // 65520 and above round to infinity.
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        // Below the least normal half: multiples of 2^-24, to which the processor rounds when a number of that unit is added.
        float sum = __uint_as_float(magnitude) + 0.5f;
        return uint16_t(sign | (__float_as_uint(sum) - __float_as_uint(0.5f)));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return uint16_t(sign | ((rounded - 0x38000000) >> 13));
}
float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    float x;
    if (magnitude >= 0x7c00) x = __uint_as_float(magnitude << 13 | 0x7f800000);
    else if (magnitude < 0x400) x = (float)magnitude * 5.9604644775390625e-8f;
    else x = __uint_as_float((magnitude << 13) + 0x38000000);
    return __uint_as_float(__float_as_uint(x) | sign);
}

float fast_exp2(float x) {
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0 : y;
}

int dp4a(int a, int b, int c) {
    for (int shift = 0; shift < 32; shift += 8) c += int8_t(a >> shift) * int8_t(b >> shift);
    return c;
}

unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = selector >> (4 * i) & 15, byte = unsigned(bytes >> (8 * (pick & 7))) & 255;
        // The selector's top bit asks for the sign of the byte in all of its bits.
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}
