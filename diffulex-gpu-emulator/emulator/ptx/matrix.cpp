// Products of matrices by a warp, and loads of their fragments (section 9.7.14 of the PTX ISA).
#include <algorithm>
#include <climits>

#include "../launch.h"
#include "../shadow.h"
#include "forms.h"
#include "jitter.h"

namespace emulator::ptx {

// A group of four lanes has a row of A and of C, and a column of B: the ISA's groupID and threadID_in_group.
static u32 group_of(u32 lane) { return lane >> 2; }
static u32 in_group(u32 lane) { return lane % 4; }

// C and D, 16 x 8: c0 c1 are two columns of a row, c2 c3 those of the row eight below.
template <class T, class F> static void for_sums(F f) {
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 i = 0; i < 4; i++) f(lane, i, group_of(lane) + (i < 2 ? 0 : 8), in_group(lane) * 2 + (i & 1));
}

static bool begin(Warp& warp, const Instruction& in) {
    if (warp.all != ~0u) fail("a product of matrices in a warp of %d threads", __builtin_popcount(warp.all));
    return warp.meets(in, ~0u);
}

static float from_bf16(u32 bits) { return float_of(bits << 16); }

// What is known of the tensor cores (Fasi and others, PeerJ CS 7:e330; Khattak and Mikaitis, arXiv:2512.07004): products are
// exact. 8 of them on an A100, 16 on an H100, and the sum so far are cut towards zero at 1 bit (A100) or 2 (H100) below the last
// place of a float whose exponent is the largest of theirs, a product's being the sum of its factors' exponents. The total is cut
// to a float. Odd seeds sum as an A100 does, even ones as an H100.
static float truncated_sum(const double* a, const double* b, u32 stride, float start) {
    const int n_at_once = jitter_seed() & 1 ? 8 : 16, n_extra = jitter_seed() & 1 ? 1 : 2;
    double sum = start;
    for (int from = 0; from < 16; from += n_at_once) {
        double terms[17] = {sum};
        int largest = sum == 0 ? INT_MIN : std::ilogb(sum);
        bool is_finite = std::isfinite(sum);
        for (int i = 0; i < n_at_once; i++) {
            double x = a[from + i], y = b[(from + i) * stride];
            terms[1 + i] = x * y;
            is_finite &= std::isfinite(terms[1 + i]);
            if (x != 0 && y != 0) largest = std::max(largest, std::ilogb(x) + std::ilogb(y));
        }
        double total = 0;
        if (is_finite && largest != INT_MIN) {
            double unit = std::ldexp(1.0, largest - 23 - n_extra);
            for (int i = 0; i <= n_at_once; i++) total += std::trunc(terms[i] / unit) * unit;
            double last = total == 0 ? 1 : std::ldexp(1.0, std::max(std::ilogb(total) - 23, -149));
            sum = std::trunc(total / last) * last;
        } else {
            for (int i = 0; i <= n_at_once; i++) total += terms[i];
            sum = total;
        }
    }
    return (float)sum;
}

// The ISA leaves the order of a sum and its rounding open, at no less than single precision. Here a sum is rounded once.
static void multiply_bf16(Warp& warp, const Instruction& in) {
    if (!begin(warp, in)) return;
    double a[16][16], b[16][8], sums[16][8];
    for (u32 lane = 0; lane < LANES; lane++) {
        for (u32 i = 0; i < 8; i++) {
            u32 row = group_of(lane) + (i % 4 < 2 ? 0 : 8), column = in_group(lane) * 2 + (i & 1) + (i < 4 ? 0 : 8);
            a[row][column] = from_bf16(warp.lanes<u32>(in.at[4 + i / 2])[lane] >> 16 * (i & 1) & 0xffff);
        }
        for (u32 i = 0; i < 4; i++) {
            u32 row = in_group(lane) * 2 + (i & 1) + (i < 2 ? 0 : 8);
            b[row][group_of(lane)] = from_bf16(warp.lanes<u32>(in.at[8 + i / 2])[lane] >> 16 * (i & 1) & 0xffff);
        }
    }
    for_sums<float>([&](u32 lane, u32 i, u32 row, u32 column) { sums[row][column] = warp.lanes<float>(in.at[10 + i])[lane]; });
    for (int row = 0; row < 16; row++) {
        if (jitter_seed()) {
            for (int column = 0; column < 8; column++) sums[row][column] = truncated_sum(a[row], &b[0][column], 8, (float)sums[row][column]);
            continue;
        }
        double of_row[8] = {};
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++) of_row[column] += a[row][k] * b[k][column];
        for (int column = 0; column < 8; column++) sums[row][column] += of_row[column];
    }
    for_sums<float>([&](u32 lane, u32 i, u32 row, u32 column) {
        float sum = (float)sums[row][column];
        warp.lanes<u32>(in.at[i])[lane] = sum == sum ? bits_of(sum) : CANONICAL_NAN;
    });
}

// K is 16 or 32. Sums of so few products are exact as floats.
template <int K> static void multiply_int8(Warp& warp, const Instruction& in) {
    if (!begin(warp, in)) return;
    constexpr u32 n_a = K / 8, n_b = K / 16;
    float a[16][K], b[K][8];
    for (u32 lane = 0; lane < LANES; lane++) {
        // Registers hold four columns each: of a row, of the row eight below, and then of the columns from 16 on.
        for (u32 i = 0; i < n_a * 4; i++) {
            u32 row = group_of(lane) + (i / 4 % 2 ? 8 : 0), column = in_group(lane) * 4 + (i & 3) + (i < 8 ? 0 : 16);
            a[row][column] = int8_t(warp.lanes<u32>(in.at[4 + i / 4])[lane] >> 8 * (i & 3));
        }
        for (u32 i = 0; i < n_b * 4; i++) {
            u32 row = in_group(lane) * 4 + (i & 3) + (i < 4 ? 0 : 16);
            b[row][group_of(lane)] = int8_t(warp.lanes<u32>(in.at[4 + n_a + i / 4])[lane] >> 8 * (i & 3));
        }
    }
    s32 sums[16][8];
    for (int row = 0; row < 16; row++) {
        float of_row[8] = {};
        for (int k = 0; k < K; k++)
            for (int column = 0; column < 8; column++) of_row[column] += a[row][k] * b[k][column];
        for (int column = 0; column < 8; column++) sums[row][column] = (s32)of_row[column];
    }
    // Without .satfinite sums wrap.
    u32 before[4][LANES];
    for (u32 i = 0; i < 4; i++) memcpy(before[i], warp.lanes<u32>(in.at[4 + n_a + n_b + i]), sizeof before[i]);
    for_sums<s32>([&](u32 lane, u32 i, u32 row, u32 column) { warp.lanes<u32>(in.at[i])[lane] = before[i][lane] + (u32)sums[row][column]; });
}

// Four matrices of 8 x 8 halves: the lanes 8m to 8m + 7 give the rows' addresses of matrix m. A lane gets two neighbours of the
// row of its group, or with .trans of the column.
template <bool transposed> static void load_matrices(Warp& warp, const Instruction& in) {
    if (!begin(warp, in)) return;
    const u32* base = warp.lanes<u32>(in.at[4]);
    u32 rows[LANES];
    for (u32 i = 0; i < LANES; i++) {
        rows[i] = base[i] + u32(in.number);
        speak_for(warp, i);
        if (rows[i] % 16) fail("a row of a matrix at %u of shared memory is not aligned to 16 bytes", rows[i]);
        if (rows[i] + 16 > block.n_shared || rows[i] > block.n_shared) fail("a row of a matrix at %u of %u bytes of shared memory", rows[i], block.n_shared);
    }
    for (u32 m = 0; m < 4; m++)
        for (u32 lane = 0; lane < LANES; lane++) {
            u32 value = 0;
            speak_for(warp, lane);
            for (u32 i = 0; i < 2; i++) {
                u32 row = transposed ? in_group(lane) * 2 + i : group_of(lane), column = transposed ? group_of(lane) : in_group(lane) * 2 + i;
                unsigned char* p = shared_memory() + rows[8 * m + row] + 2 * column;
                u16 half;
                if (transposed) check<2>(p, Access::Load);
                else if (i == 0) check<4>(p, Access::Load);
                memcpy(&half, p, 2);
                value |= (u32)half << 16 * i;
            }
            warp.lanes<u32>(in.at[m])[lane] = value;
        }
}

void add_matrix(Forms& forms) {
    forms.add("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "{WWWW}{wwww}{ww}{wwww}", multiply_bf16);
    forms.add("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "{WWWW}{wwww}{ww}{wwww}", multiply_int8<32>);
    forms.add("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32", "{WWWW}{ww}{w}{wwww}", multiply_int8<16>);
    forms.add("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "{WWWW}a", load_matrices<false>);
    forms.add("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "{WWWW}a", load_matrices<true>);
}

}  // namespace emulator::ptx
