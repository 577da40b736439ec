// Loads, stores, atomic changes and asynchronous copies of the PTX ISA (section 9.7.9 and 9.7.13), lane by lane past the shadow.
#include "../shadow.h"

#include "../launch.h"
#include "forms.h"

namespace emulator::ptx {

enum class Space { Global, Shared, Generic };

// Unchecked objects know only the bounds of shared memory, past which the emulator's own memory lies.
template <int N> static void look(unsigned char* p, Access access) {
#if EMULATOR_WITH_CHECKS
    check<N>(p, access);
#endif
}

template <int N> static unsigned char* shared_place(u64 address) {
    if (address + N > block.n_shared || address > block.n_shared)
        fail("access of %d bytes at %lld of %u bytes of shared memory", N, (long long)address, block.n_shared);
    return shared_memory() + address;
}

template <Space space, int N> static unsigned char* place(const Warp& warp, u32 lane, u64 address, Access access) {
#if EMULATOR_WITH_CHECKS
    speak_for(warp, lane);
#endif
    bool in_window = address - SHARED_WINDOW < SHARED_WINDOW_BYTES;
    unsigned char* p;
    if (space == Space::Shared || (space == Space::Generic && in_window)) {
        p = shared_place<N>(space == Space::Generic ? address - SHARED_WINDOW : address);
    } else {
        if (in_window) fail("an address of shared memory is used as one of global memory");
        p = (unsigned char*)address;
    }
    look<N>(p, access);
    return p;
}

// A lane of a register of 16 bits: nothing stands above them.
struct Half {
    u32 value;
    explicit Half(s16 x) : value((u16)x) {}
};

// T is what memory holds, D the lanes' type: wider ones are filled by T's sign or zeros.
template <Space space, class T, class D, int N> static void load(Warp& warp, const Instruction& in) {
    const u64* base = warp.lanes<u64>(in.at[N]);
    for_lanes(warp.mask, [&](u32 i) {
        T values[N];
        memcpy(values, place<space, sizeof values>(warp, i, base[i] + u64(in.number), Access::Load), sizeof values);
        for (int j = 0; j < N; j++) warp.lanes<D>(in.at[j])[i] = D(values[j]);
    });
}
template <Space space, class T, class D, int N> static void store(Warp& warp, const Instruction& in) {
    const u64* base = warp.lanes<u64>(in.at[0]);
    for_lanes(warp.mask, [&](u32 i) {
        T values[N];
        for (int j = 0; j < N; j++) values[j] = T(warp.lanes<D>(in.at[1 + j])[i]);
        memcpy(place<space, sizeof values>(warp, i, base[i] + u64(in.number), Access::Store), values, sizeof values);
    });
}

// A parameter is the same in all lanes.
template <class T, class D> static void load_parameter(Warp& warp, const Instruction& in) {
    const std::vector<char>& bytes = block.arguments[u64(in.number) >> 32];
    u32 offset = u32(in.number);
    T value;
    if (offset + sizeof value > bytes.size()) fail("%zu bytes at %u of a parameter of %zu bytes are read", sizeof value, offset, bytes.size());
    memcpy(&value, bytes.data() + offset, sizeof value);
    D* d = warp.lanes<D>(in.at[0]);
    for_lanes(warp.mask, [&](u32 i) { d[i] = D(value); });
}

template <Space space, class T, class F> static void change(Warp& warp, const Instruction& in, F f) {
    T* d = warp.lanes<T>(in.at[0]);
    const u64* base = warp.lanes<u64>(in.at[1]);
    const T* with = warp.lanes<T>(in.at[2]);
    // The order of lanes is open.
    for (u32 n = 0; n < LANES; n++) {
        u32 i = (n + block.first_lane) % LANES;
        if (!(warp.mask >> i & 1)) continue;
        unsigned char* p = place<space, sizeof(T)>(warp, i, base[i] + u64(in.number), Access::Atomic);
        T old, fresh;
        memcpy(&old, p, sizeof old);
        fresh = f(old, with[i]);
        memcpy(p, &fresh, sizeof fresh);
        d[i] = old;
    }
}

// 16 bytes to shared memory, of which the first so many come from global memory and the others are zeros. They arrive as late as
// the thread's wait allows.
template <bool with_size> static void begin_copy(Warp& warp, const Instruction& in) {
    const u32* to = warp.lanes<u32>(in.at[0]);
    const u64* from = warp.lanes<u64>(in.at[1]);
    for_lanes(warp.mask, [&](u32 i) {
        u32 n_bytes = with_size ? warp.lanes<u32>(in.at[2])[i] : 16;
        speak_for(warp, i);
        if (n_bytes > 16) fail("an asynchronous copy of %u bytes to 16", n_bytes);
        unsigned char* target = shared_place<16>(to[i]);
        if (to[i] % 16 || from[i] % 16) fail("an asynchronous copy of 16 bytes is not aligned");
        if (n_bytes == 16) place<Space::Global, 16>(warp, i, from[i], Access::Load);
        else
            for (u32 byte = 0; byte < n_bytes; byte++) place<Space::Global, 1>(warp, i, from[i] + byte, Access::Load);
        check_copy_begin(target);
        warp.flights[i].push_back({to[i], from[i], n_bytes, warp.n_groups[i]});
    });
}
static void commit_copies(Warp& warp, const Instruction&) {
    for_lanes(warp.mask, [&](u32 i) { warp.n_groups[i]++; });
}
// All but so many of the latest groups have arrived, for the thread that waits.
static void await_copies(Warp& warp, const Instruction& in) {
    for_lanes(warp.mask, [&](u32 i) {
        std::vector<Flight>& flights = warp.flights[i];
        size_t n = 0;
        while (n < flights.size() && (s64)flights[n].group < (s64)warp.n_groups[i] - in.number) n++;
        if (n) speak_for(warp, i);
        for (size_t j = 0; j < n; j++) {
            unsigned char* target = shared_memory() + flights[j].to;
            memcpy(target, (const void*)flights[j].from, flights[j].n_bytes);
            memset(target + flights[j].n_bytes, 0, 16 - flights[j].n_bytes);
            check_copy_end(target);
        }
        flights.erase(flights.begin(), flights.begin() + n);
    });
}

#define SPACES(name, suffix, L, ...)                              \
    {                                                             \
        constexpr Space space = Space::Global;                    \
        forms.add(name ".global." suffix, L, __VA_ARGS__);        \
    }                                                             \
    {                                                             \
        constexpr Space space = Space::Shared;                    \
        forms.add(name ".shared." suffix, L, __VA_ARGS__);        \
    }                                                             \
    {                                                             \
        constexpr Space space = Space::Generic;                   \
        forms.add(name "." suffix, L, __VA_ARGS__);               \
    }
#define LOADS(suffix, L, T, D, N)                                                 \
    SPACES("ld", suffix, L, load<space, T, D, N>)                                 \
    forms.add("ld.global.nc." suffix, L, load<Space::Global, T, D, N>);
#define ATOMS(suffix, L, T, ...) SPACES("atom", suffix, L, [](Warp& w, const Instruction& in) { change<space, T>(w, in, [](T a, T b) -> T { return __VA_ARGS__; }); })

void add_memory(Forms& forms) {
    LOADS("u8", "HA", uint8_t, u32, 1)
    LOADS("u8", "WA", uint8_t, u32, 1)
    LOADS("u16", "HA", u16, u32, 1)
    LOADS("u16", "WA", u16, u32, 1)
    LOADS("s8", "HA", int8_t, Half, 1)
    LOADS("s8", "WA", int8_t, s32, 1)
    LOADS("s16", "WA", s16, s32, 1)
    LOADS("u32", "WA", u32, u32, 1)
    LOADS("s32", "WA", u32, u32, 1)
    LOADS("b32", "WA", u32, u32, 1)
    LOADS("f32", "WA", u32, u32, 1)
    LOADS("u32", "DA", u32, u64, 1)
    LOADS("s32", "DA", s32, s64, 1)
    LOADS("u64", "DA", u64, u64, 1)
    LOADS("b64", "DA", u64, u64, 1)
    LOADS("f64", "DA", u64, u64, 1)
    LOADS("v2.u32", "{WW}A", u32, u32, 2)
    LOADS("v2.f32", "{WW}A", u32, u32, 2)
    LOADS("v4.u32", "{WWWW}A", u32, u32, 4)
    LOADS("v4.f32", "{WWWW}A", u32, u32, 4)
    LOADS("v2.u64", "{DD}A", u64, u64, 2)
    LOADS("v2.f64", "{DD}A", u64, u64, 2)
    SPACES("st", "u8", "Ah", store<space, uint8_t, u32, 1>)
    SPACES("st", "u8", "Aw", store<space, uint8_t, u32, 1>)
    SPACES("st", "u16", "Ah", store<space, u16, u32, 1>)
    SPACES("st", "u16", "Aw", store<space, u16, u32, 1>)
    SPACES("st", "u32", "Aw", store<space, u32, u32, 1>)
    SPACES("st", "u32", "Ad", store<space, u32, u64, 1>)
    SPACES("st", "f32", "Aw", store<space, u32, u32, 1>)
    SPACES("st", "u64", "Ad", store<space, u64, u64, 1>)
    SPACES("st", "f64", "Ad", store<space, u64, u64, 1>)
    SPACES("st", "v2.u32", "A{ww}", store<space, u32, u32, 2>)
    SPACES("st", "v2.f32", "A{ww}", store<space, u32, u32, 2>)
    SPACES("st", "v4.u32", "A{wwww}", store<space, u32, u32, 4>)
    SPACES("st", "v4.f32", "A{wwww}", store<space, u32, u32, 4>)
    SPACES("st", "v2.u64", "A{dd}", store<space, u64, u64, 2>)
    SPACES("st", "v4.u8", "A{hhhh}", store<space, uint8_t, u32, 4>)
    forms.add("ld.param.u32", "WM", load_parameter<u32, u32>);
    forms.add("ld.param.f32", "WM", load_parameter<u32, u32>);
    forms.add("ld.param.s32", "DM", load_parameter<s32, s64>);
    forms.add("ld.param.s32", "WM", load_parameter<u32, u32>);
    forms.add("ld.param.u64", "DM", load_parameter<u64, u64>);
    forms.add("ld.param.f64", "DM", load_parameter<u64, u64>);
    forms.add("ld.param.u8", "HM", load_parameter<uint8_t, u32>);
    forms.add("ld.param.u16", "HM", load_parameter<u16, u32>);
    ATOMS("add.u32", "WAw", u32, a + b)
    ATOMS("add.s32", "WAw", u32, a + b)
    ATOMS("add.u64", "DAd", u64, a + b)
    ATOMS("max.u32", "WAw", u32, a < b ? b : a)
    ATOMS("max.s32", "WAw", s32, a < b ? b : a)
    ATOMS("max.u64", "DAd", u64, a < b ? b : a)
    ATOMS("min.u32", "WAw", u32, b < a ? b : a)
    ATOMS("min.u64", "DAd", u64, b < a ? b : a)
    ATOMS("or.b32", "WAw", u32, a | b)
    ATOMS("and.b32", "WAw", u32, a& b)
    ATOMS("exch.b32", "WAw", u32, b)
}

void add_copies(Forms& forms) {
    forms.add("cp.async.cg.shared.global", "aA6w", begin_copy<true>);
    forms.add("cp.async.cg.shared.global", "aA6", begin_copy<false>);
    forms.add("cp.async.commit_group", "", commit_copies);
    forms.add("cp.async.wait_group", "#", await_copies);
}

}  // namespace emulator::ptx
