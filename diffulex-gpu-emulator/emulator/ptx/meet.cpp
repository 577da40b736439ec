// Where lanes of a warp meet: shuffles, votes, barriers (sections 9.7.9 and 9.7.13 of the PTX ISA).
#include "../launch.h"
#include "../shadow.h"
#include "forms.h"

namespace emulator::ptx {

// The lanes named by a mask in a register, which must be the same in all of them. False where some are still on their way.
static bool meets_mask(Warp& warp, const Instruction& in, u32 place) {
    const u32* masks = warp.lanes<u32>(place);
    u32 required = masks[__builtin_ctz(warp.mask)];
    for_lanes(warp.mask, [&](u32 i) {
        speak_for(warp, i);
        if (masks[i] != required) fail("lanes meet with the masks %08x and %08x", masks[i], required);
        if (!(required >> i & 1)) fail("lane %u is not in the mask %08x that it brings", i, required);
    });
    return warp.meets(in, required);
}

enum class Mode { Up, Down, Butterfly, Index };

// The ISA's own steps: c holds the width's complement (bits 8 to 12) and the last lane that may be read (bits 0 to 4).
template <Mode mode> static void shuffle(Warp& warp, const Instruction& in) {
    if (!meets_mask(warp, in, in.at[5])) return;
    u32 *d = warp.lanes<u32>(in.at[0]), *found = warp.lanes<u32>(in.at[1]);
    const u32 *b = warp.lanes<u32>(in.at[3]), *c = warp.lanes<u32>(in.at[4]);
    u32 values[LANES];
    memcpy(values, warp.lanes<u32>(in.at[2]), sizeof values);
    for_lanes(warp.mask, [&](u32 i) {
        int lane = (int)i, step = b[i] & 31, segment = c[i] >> 8 & 31, clamp = c[i] & 31;
        int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
        int from = mode == Mode::Up ? lane - step : mode == Mode::Down ? lane + step : mode == Mode::Butterfly ? lane ^ step : first | (step & ~segment);
        bool is_there = mode == Mode::Up ? from >= last : from <= last;
        if (!is_there) from = lane;
        // The value of a lane that takes no part is open.
        d[i] = warp.mask >> from & 1 ? values[from] : ~0u;
        found[i] = is_there ? ~0u : 0;
    });
}

static u32 votes_of(Warp& warp, u32 place) {
    u32 votes = 0;
    const u32* predicate = warp.lanes<u32>(place);
    for_lanes(warp.mask, [&](u32 i) { votes |= (predicate[i] & 1) << i; });
    return votes;
}
template <class F> static void vote(Warp& warp, const Instruction& in, F f) {
    if (!meets_mask(warp, in, in.at[2])) return;
    u32 result = f(votes_of(warp, in.at[1]), warp.mask);
    u32* d = warp.lanes<u32>(in.at[0]);
    for_lanes(warp.mask, [&](u32 i) { d[i] = result; });
}

static void sync_warp(Warp& warp, const Instruction& in) {
    if (meets_mask(warp, in, in.at[0])) barrier_of_warp(int(warp.first_thread / LANES));
}

// The whole warp waits; the block goes on when all have come (see run.cpp).
static void arrive(Warp& warp, const Instruction& in, u32 votes) {
    block.n_votes += (u32)__builtin_popcount(votes);
    block.n_arrived += (u32)__builtin_popcount(warp.mask);
    warp.barrier = &in;
}
// All threads of a warp must come to the same bar: lanes that have ended, or that never come, are an error.
static void sync_block(Warp& warp, const Instruction& in) {
    if (warp.meets(in, warp.all)) arrive(warp, in, 0);
}
static void reduce_block(Warp& warp, const Instruction& in) {
    if (warp.meets(in, warp.all)) arrive(warp, in, votes_of(warp, in.at[1]));
}

void add_warp(Forms& forms) {
    forms.add("shfl.sync.up.b32", "W|Pwwww", shuffle<Mode::Up>);
    forms.add("shfl.sync.down.b32", "W|Pwwww", shuffle<Mode::Down>);
    forms.add("shfl.sync.bfly.b32", "W|Pwwww", shuffle<Mode::Butterfly>);
    forms.add("shfl.sync.idx.b32", "W|Pwwww", shuffle<Mode::Index>);
    forms.add("vote.sync.ballot.b32", "Wpw", [](Warp& w, const Instruction& in) { vote(w, in, [](u32 votes, u32) { return votes; }); });
    forms.add("vote.sync.any.pred", "Ppw", [](Warp& w, const Instruction& in) { vote(w, in, [](u32 votes, u32) { return votes ? ~0u : 0u; }); });
    forms.add("vote.sync.all.pred", "Ppw", [](Warp& w, const Instruction& in) { vote(w, in, [](u32 votes, u32 all) { return votes == all ? ~0u : 0u; }); });
    forms.add("bar.warp.sync", "w", sync_warp);
    forms.add("bar.sync", "#", sync_block);
    forms.add("bar.red.popc.u32", "W#p", reduce_block);
    forms.add("bar.red.and.pred", "P#p", reduce_block);
    forms.add("bar.red.or.pred", "P#p", reduce_block);
}

}  // namespace emulator::ptx
