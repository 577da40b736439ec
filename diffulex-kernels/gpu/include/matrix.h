// Weights [n_out, n_in] in device memory, and one value of any of them. src/kernels/cuda/matrix.rs writes what is described here.
//
// F32 is row-major with rows padded by zeros to a multiple of 64 values. All others are chunks of 16 outputs x 64 inputs,
// [tile of outputs][chunk of inputs], padded by zeros on both sides. In a chunk, integers or bf16 lie in the order in which a
// warp's lanes want them as operand A of mma (device.h), so that a lane loads 16 bytes at a time and nothing is shuffled:
//   Bf16         [4 steps of 16 inputs][32 lanes][4 words]
//   Int8, Q8_0   [2 steps of 32 inputs][32 lanes][4 words]
//   Int4, Q4_K   [32 lanes][4 words]; low halves of bytes are step 0, high ones step 1. Int4 is signed, Q4_K is not.
//   Q6_K         low four bits as Int4, then [32 lanes][2 steps]: in each byte two more bits of words 0 to 3. Six bits, signed.
// Behind the integers of a chunk comes a word per output (`META` bytes):
//   Int4         the scale, f32
//   Q8_0         the scales of two groups of 32, IEEE halves, the first in the low half
//   Q4_K         of each of two groups of 32: scale factor, minimum factor; unsigned bytes
//   Q6_K         factors of four groups of 16; signed bytes
// Behind all chunks comes another word per output: of Int8 one a row, the scale, f32; [tile][16]. Of Q4_K and Q6_K one per 256
// inputs, [tile][n_in / 256][16]: for Q4_K scale and minimum, IEEE halves; for Q6_K the scale, f32.
#pragma once
#include "device.h"

namespace matrix {

// As in matrix.rs.
enum Kind { F32 = 0, BF16 = 1, INT8 = 2, INT4 = 3, Q8_0 = 4, Q4_K = 5, Q6_K = 6 };

constexpr int OUTPUTS = 16, INPUTS = 64, CHUNKS_PER_UNIT = 4;

// Bytes of a chunk's integers or bf16.
DEVICE constexpr int quant_bytes(int kind) {
    return kind == BF16 ? 2048 : kind == INT8 || kind == Q8_0 ? 1024 : kind == Q6_K ? 768 : 512;
}
DEVICE constexpr int meta_bytes(int kind) { return kind == BF16 || kind == INT8 ? 0 : 4 * OUTPUTS; }
DEVICE constexpr int chunk_bytes(int kind) { return quant_bytes(kind) + meta_bytes(kind); }

// Chunks of a row.
DEVICE int n_chunks(int n_in) { return (n_in + INPUTS - 1) / INPUTS; }
DEVICE int n_tiles(int n_out) { return (n_out + OUTPUTS - 1) / OUTPUTS; }
// Values from one row of F32, or of rounded inputs, to the next.
DEVICE int stride(int n_in) { return n_chunks(n_in) * INPUTS; }
// Where the words behind the chunks begin.
DEVICE int64_t units_at(int kind, int n_out, int n_in) {
    return (int64_t)n_tiles(n_out) * n_chunks(n_in) * chunk_bytes(kind);
}

// Four bits at the place of a signed or unsigned byte.
DEVICE int low_bits(const uint8_t* chunk, int lane, int word, int byte, int step) {
    return chunk[lane * 16 + word * 4 + byte] >> 4 * step & 15;
}

// The weight `in` of output `out`: exactly what the reference's matrix has there.
DEVICE float weight_at(int kind, const uint8_t* data, int n_out, int n_in, int out, int in) {
    if (kind == F32) return ((const float*)data)[(int64_t)out * stride(n_in) + in];
    int tile = out / OUTPUTS, o = out % OUTPUTS, k = in % INPUTS, chunks = n_chunks(n_in);
    const uint8_t* chunk = data + ((int64_t)tile * chunks + in / INPUTS) * chunk_bytes(kind);
    if (kind == BF16) {
        int lane = o % 8 * 4 + k % 8 / 2, word = o / 8 + k % 16 / 8 * 2;
        return from_bf16(((const uint16_t*)chunk)[k / 16 * 256 + lane * 8 + word * 2 + k % 2]);
    }
    int step = k / 32, lane = o % 8 * 4 + k % 16 / 4, word = o / 8 + k % 32 / 16 * 2, byte = k % 4;
    const uint8_t* meta = chunk + quant_bytes(kind) + 4 * o;
    const uint8_t* units = data + units_at(kind, n_out, n_in);
    if (kind == INT8) {
        return (float)(int8_t)chunk[step * 512 + lane * 16 + word * 4 + byte] * ((const float*)units)[out];
    }
    if (kind == Q8_0) {
        float scale = from_half(((const uint16_t*)meta)[step]);
        return scale * (float)(int8_t)chunk[step * 512 + lane * 16 + word * 4 + byte];
    }
    int low = low_bits(chunk, lane, word, byte, step);
    if (kind == INT4) return (float)((low ^ 8) - 8) * *(const float*)meta;
    const uint8_t* unit = units + 4 * (((int64_t)tile * (chunks / CHUNKS_PER_UNIT) + in / 256) * OUTPUTS + o);
    if (kind == Q4_K) {
        // Both products are exact.
        const uint16_t* halves = (const uint16_t*)unit;
        return from_half(halves[0]) * (float)meta[2 * step] * (float)low - from_half(halves[1]) * (float)meta[2 * step + 1];
    }
    int high = chunk[512 + lane * 8 + step * 4 + byte] >> 2 * word & 3;
    return *(const float*)unit * (float)(int8_t)meta[k / 16] * (float)(((low | high << 4) ^ 32) - 32);
}

}  // namespace matrix
