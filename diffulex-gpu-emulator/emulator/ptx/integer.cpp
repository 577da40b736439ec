// Integer instructions of the PTX ISA (sections 9.7.1, 9.7.4 and 9.7.7).
#include "forms.h"

namespace emulator::ptx {

typedef __int128 s128;
typedef unsigned __int128 u128;

// Division by zero gives a value that the ISA leaves open: all ones here.
template <class T> static T quotient(T a, T b) { return b == 0 ? T(~T(0)) : b == T(-1) && std::is_signed<T>::value ? T(0 - (u64)a) : T(a / b); }
template <class T> static T remainder(T a, T b) { return b == 0 ? T(~T(0)) : b == T(-1) && std::is_signed<T>::value ? T(0) : T(a % b); }

// Shifts by more than the width are shifts by the width.
template <class T> static T shifted_left(T a, u32 n) { return n >= sizeof(T) * 8 ? T(0) : T(a << n); }
template <class T> static T shifted_right(T a, u32 n) {
    u32 most = sizeof(T) * 8 - 1;
    if (std::is_signed<T>::value) return T(a >> (n > most ? most : n));
    return n > most ? T(0) : T(a >> n);
}

// `length` bits of `a` at `from` of `b`.
template <class T> static T inserted(T a, T b, u32 from, u32 length) {
    from &= 0xff;
    length &= 0xff;
    u32 bits = sizeof(T) * 8;
    if (from >= bits || length == 0) return b;
    T ones = length >= bits ? ~T(0) : T((T(1) << length) - 1);
    return T((b & ~T(ones << from)) | T((a & ones) << from));
}
template <class T> static void insert(Warp& warp, const Instruction& in) {
    const u32* length = warp.lanes<u32>(in.at[4]);
    T* d = warp.lanes<T>(in.at[0]);
    const T *a = warp.lanes<T>(in.at[1]), *b = warp.lanes<T>(in.at[2]);
    const u32* from = warp.lanes<u32>(in.at[3]);
    for_lanes(warp.mask, [&](u32 i) { d[i] = inserted<T>(a[i], b[i], from[i], length[i]); });
}

// Bytes by number from the eight of b and a; bit 3 of a number takes the byte's sign in all bits instead.
static u32 permuted(u32 a, u32 b, u32 selector) {
    u64 bytes = (u64)b << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 pick = selector >> 4 * i & 15;
        u32 byte = u32(bytes >> 8 * (pick & 7)) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static u32 dot4(s32 a, s32 b, s32 c) {
    for (int i = 0; i < 32; i += 8) c = (u32)c + u32((s32)(int8_t)(a >> i) * (int8_t)(b >> i));
    return c;
}

// Lane by lane: what an idle lane holds must not trap.
template <class T, class F> static void by_lane(Warp& warp, const Instruction& in, F f) {
    T* d = warp.lanes<T>(in.at[0]);
    const T *a = warp.lanes<T>(in.at[1]), *b = warp.lanes<T>(in.at[2]);
    for_lanes(warp.mask, [&](u32 i) { d[i] = f(a[i], b[i]); });
}

#define SAME(name, letters, T, ...) forms.add(name, letters, PTX_RUN2(T, T, T, __VA_ARGS__))
#define DIVISIONS(suffix, letters, T)                                                                                       \
    forms.add("div." suffix, letters, [](Warp& w, const Instruction& in) { by_lane<T>(w, in, quotient<T>); });              \
    forms.add("rem." suffix, letters, [](Warp& w, const Instruction& in) { by_lane<T>(w, in, remainder<T>); });             \
    SAME("min." suffix, letters, T, a < b ? a : b);                                                                         \
    SAME("max." suffix, letters, T, a < b ? b : a);

void add_integer(Forms& forms) {
    SAME("add.s32", "Www", u32, a + b);
    SAME("add.u32", "Www", u32, a + b);
    SAME("add.s64", "Ddd", u64, a + b);
    SAME("add.u64", "Ddd", u64, a + b);
    SAME("sub.s32", "Www", u32, a - b);
    SAME("sub.u32", "Www", u32, a - b);
    SAME("sub.s64", "Ddd", u64, a - b);
    SAME("sub.u64", "Ddd", u64, a - b);
    SAME("mul.lo.s32", "Www", u32, a* b);
    SAME("mul.lo.u32", "Www", u32, a* b);
    SAME("mul.lo.s64", "Ddd", u64, a* b);
    SAME("mul.lo.u64", "Ddd", u64, a* b);
    SAME("mul.lo.s16", "Hhh", u32, a* b & 0xffff);
    SAME("mul.hi.s32", "Www", s32, s32((s64)a * b >> 32));
    SAME("mul.hi.u32", "Www", u32, u32((u64)a * b >> 32));
    SAME("mul.hi.s64", "Ddd", s64, s64((s128)a * b >> 64));
    SAME("mul.hi.u64", "Ddd", u64, u64((u128)a * b >> 64));
    forms.add("mul.wide.s32", "Dww", PTX_RUN2(s64, s32, s32, (s64)a * b));
    forms.add("mul.wide.u32", "Dww", PTX_RUN2(u64, u32, u32, (u64)a * b));
    forms.add("mul.wide.s16", "Whh", PTX_RUN2(s32, u32, u32, (s32)(s16)a * (s16)b));
    forms.add("mul.wide.u16", "Whh", PTX_RUN2(u32, u32, u32, a * b));
    forms.add("mad.lo.s32", "Wwww", PTX_RUN3(u32, u32, u32, u32, a * b + c));
    forms.add("mad.lo.u32", "Wwww", PTX_RUN3(u32, u32, u32, u32, a * b + c));
    forms.add("mad.lo.s64", "Dddd", PTX_RUN3(u64, u64, u64, u64, a * b + c));
    forms.add("mad.wide.s32", "Dwwd", PTX_RUN3(u64, s32, s32, u64, u64((s64)a * b) + c));
    forms.add("mad.wide.u32", "Dwwd", PTX_RUN3(u64, u32, u32, u64, (u64)a * b + c));
    forms.add("neg.s32", "Ww", PTX_RUN1(u32, u32, 0 - a));
    forms.add("neg.s64", "Dd", PTX_RUN1(u64, u64, 0 - a));
    forms.add("abs.s32", "Ww", PTX_RUN1(u32, u32, (s32)a < 0 ? 0 - a : a));
    forms.add("abs.s64", "Dd", PTX_RUN1(u64, u64, (s64)a < 0 ? 0 - a : a));
    forms.add("dp4a.s32.s32", "Wwww", PTX_RUN3(u32, u32, u32, u32, dot4(a, b, c)));
    forms.add("popc.b32", "Ww", PTX_RUN1(u32, u32, (u32)__builtin_popcount(a)));
    forms.add("popc.b64", "Wd", PTX_RUN1(u32, u64, (u32)__builtin_popcountll(a)));
    forms.add("clz.b32", "Ww", PTX_RUN1(u32, u32, a ? (u32)__builtin_clz(a) : 32u));
    forms.add("prmt.b32", "Wwww", PTX_RUN3(u32, u32, u32, u32, permuted(a, b, c)));
    forms.add("bfi.b32", "Wwwww", insert<u32>);
    forms.add("bfi.b64", "Dddww", insert<u64>);
    DIVISIONS("s32", "Www", s32)
    DIVISIONS("u32", "Www", u32)
    DIVISIONS("s64", "Ddd", s64)
    DIVISIONS("u64", "Ddd", u64)
}

#define BITS(T, suffix, L1, L2)                                         \
    forms.add("and." suffix, L2, PTX_RUN2(T, T, T, a & b));             \
    forms.add("or." suffix, L2, PTX_RUN2(T, T, T, a | b));              \
    forms.add("xor." suffix, L2, PTX_RUN2(T, T, T, a ^ b));             \
    forms.add("not." suffix, L1, PTX_RUN1(T, T, T(~a)));

#define COMPARE(name, T, L, ...) forms.add("setp." name, L, PTX_RUN2(u32, T, T, (__VA_ARGS__) ? ~0u : 0u));
#define EQUALITY(suffix, T, L)          \
    COMPARE("eq." suffix, T, L, a == b) \
    COMPARE("ne." suffix, T, L, a != b)
#define ORDER(suffix, T, L)             \
    EQUALITY(suffix, T, L)              \
    COMPARE("lt." suffix, T, L, a < b)  \
    COMPARE("le." suffix, T, L, a <= b) \
    COMPARE("gt." suffix, T, L, a > b)  \
    COMPARE("ge." suffix, T, L, a >= b)
#define CHOICE(suffix, T, L) forms.add("selp." suffix, L, PTX_RUN3(T, T, T, u32, c ? a : b));
#define MOVE(suffix, T, L) forms.add("mov." suffix, L, PTX_RUN1(T, T, a));

// Two halves make a register, the first the low one; and the other way round.
static void pack64(Warp& warp, const Instruction& in) { map2<u64, u32, u32>(warp, in, [](u32 low, u32 high) { return (u64)high << 32 | low; }); }
static void pack32(Warp& warp, const Instruction& in) { map2<u32, u32, u32>(warp, in, [](u32 low, u32 high) { return high << 16 | (low & 0xffff); }); }
template <class T> static void unpack(Warp& warp, const Instruction& in) {
    constexpr int half = sizeof(T) * 4;
    u32 *low = warp.lanes<u32>(in.at[0]), *high = warp.lanes<u32>(in.at[1]);
    const T* from = warp.lanes<T>(in.at[2]);
    for_lanes(warp.mask, [&](u32 i) {
        T value = from[i];
        low[i] = u32(value & ((T(1) << half) - 1));
        high[i] = u32(value >> half);
    });
}

void add_logic(Forms& forms) {
    BITS(u32, "b32", "Ww", "Www")
    BITS(u64, "b64", "Dd", "Ddd")
    BITS(u32, "pred", "Pp", "Ppp")
    forms.add("and.b16", "Hhh", PTX_RUN2(u32, u32, u32, a & b));
    forms.add("or.b16", "Hhh", PTX_RUN2(u32, u32, u32, a | b));
    forms.add("shl.b32", "Www", PTX_RUN2(u32, u32, u32, shifted_left<u32>(a, b)));
    forms.add("shl.b64", "Ddw", PTX_RUN2(u64, u64, u32, shifted_left<u64>(a, b)));
    forms.add("shr.u32", "Www", PTX_RUN2(u32, u32, u32, shifted_right<u32>(a, b)));
    forms.add("shr.s32", "Www", PTX_RUN2(s32, s32, u32, shifted_right<s32>(a, b)));
    forms.add("shr.u64", "Ddw", PTX_RUN2(u64, u64, u32, shifted_right<u64>(a, b)));
    forms.add("shr.s64", "Ddw", PTX_RUN2(s64, s64, u32, shifted_right<s64>(a, b)));
    EQUALITY("b32", u32, "Pww")
    EQUALITY("b64", u64, "Pdd")
    EQUALITY("s16", u32, "Phh")
    EQUALITY("b16", u32, "Phh")
    ORDER("s32", s32, "Pww")
    ORDER("u32", u32, "Pww")
    ORDER("s64", s64, "Pdd")
    ORDER("u64", u64, "Pdd")
    CHOICE("b32", u32, "Wwwp")
    CHOICE("u32", u32, "Wwwp")
    CHOICE("s32", u32, "Wwwp")
    CHOICE("f32", u32, "Wwwp")
    CHOICE("b64", u64, "Dddp")
    CHOICE("u64", u64, "Dddp")
    CHOICE("s64", u64, "Dddp")
    CHOICE("f64", u64, "Dddp")
    CHOICE("b16", u32, "Hhhp")
    CHOICE("u16", u32, "Hhhp")
    CHOICE("s16", u32, "Hhhp")
    MOVE("u16", u32, "Hh")
    MOVE("b16", u32, "Hh")
    MOVE("pred", u32, "Pp")
    MOVE("u32", u32, "Ww")
    MOVE("s32", u32, "Ww")
    MOVE("b32", u32, "Ww")
    MOVE("f32", u32, "Ww")
    MOVE("u64", u64, "Dd")
    MOVE("s64", u64, "Dd")
    MOVE("b64", u64, "Dd")
    MOVE("f64", u64, "Dd")
    forms.add("mov.b64", "D{ww}", pack64);
    forms.add("mov.b64", "{WW}d", unpack<u64>);
    forms.add("mov.b32", "W{hh}", pack32);
    forms.add("mov.b32", "{HH}w", unpack<u32>);
}

}  // namespace emulator::ptx
