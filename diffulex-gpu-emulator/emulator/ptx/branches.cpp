// Branches, returns, and the choice of the lanes that run: always those that are least far, so that lanes that parted meet again at
// the first place that all of them come to.
#include <algorithm>

#include "../launch.h"
#include "forms.h"

namespace emulator::ptx {

bool Warp::choose() {
    for_lanes(mask, [&](u32 i) { places[i] = at; });
    const Instruction *least = nullptr, *next = nullptr;
    u32 chosen = 0;
    for_lanes(live & ~waiting, [&](u32 i) {
        if (!least || places[i] < least) {
            next = least;
            least = places[i];
            chosen = 0;
        } else if (places[i] > least && (!next || places[i] < next)) {
            next = places[i];
        }
        if (places[i] == least) chosen |= 1u << i;
    });
    set_mask(chosen);
    at = least;
    // With one group no lane is met again before the program's end.
    join = next ? next : (const Instruction*)UINTPTR_MAX;
    return chosen != 0;
}

bool Warp::meets(const Instruction& in, u32 required) {
    u32 here = mask;
    for_lanes(waiting, [&](u32 i) {
        if (places[i] == &in) here |= 1u << i;
    });
    if ((required & ~here) == 0) {
        waiting &= ~here;
        if (here != mask) set_mask(here);
        return true;
    }
    speak_for(*this, __builtin_ctz(mask));
    if (required & ~live) fail("lanes of a warp wait for others that have ended");
    waiting |= mask;
    for_lanes(mask, [&](u32 i) { places[i] = &in; });
    set_mask(0);
    join = nullptr;
    return false;
}

void Warp::end() {
    for_lanes(mask, [&](u32 i) {
        if (flights[i].empty() && n_groups[i] == 0) return;
        speak_for(*this, i);
        if (!flights[i].empty()) fail("a thread ends with asynchronous copies on their way");
    });
    if (block.n_arrived) {
        speak_for(*this, __builtin_ctz(mask));
        fail("a barrier waits for threads that have ended");
    }
    live &= ~mask;
    set_mask(0);
    join = nullptr;
}

static void branch_always(Warp& warp, const Instruction& in) { warp.at = warp.code + in.target; }

static void branch(Warp& warp, const Instruction& in) {
    const u32* predicate = warp.lanes<u32>(in.guard);
    const u32 flip = in.is_guard_negated ? ~0u : 0;
    u32 bits[LANES];
    for (int i = 0; i < LANES; i++) bits[i] = (predicate[i] ^ flip) & warp.active[i] & (1u << i);
    u32 taken = 0;
    for (int i = 0; i < LANES; i++) taken |= bits[i];
    if (taken == 0) return;
    const Instruction* target = warp.code + in.target;
    if (taken == warp.mask) {
        warp.at = target;
    } else if (target > warp.at) {
        warp.split(taken, target);
    } else {
        warp.split(warp.mask & ~taken, warp.at);
        warp.at = target;
    }
}
static void end_thread(Warp& warp, const Instruction&) { warp.end(); }

void add_control(Forms& forms) {
    forms.add("bra", "L", branch_always);
    forms.add("bra.uni", "L", branch_always);
    // With a guard; decode.cpp takes these for it.
    forms.add("@bra", "L", branch);
    forms.add("ret", "", end_thread);
    forms.add("exit", "", end_thread);
}

const Forms& forms() {
    static const Forms* all = [] {
        auto* forms = new Forms;
        add_integer(*forms);
        add_logic(*forms);
        add_float(*forms);
        add_conversions(*forms);
        add_memory(*forms);
        add_copies(*forms);
        add_warp(*forms);
        add_matrix(*forms);
        add_control(*forms);
        return forms;
    }();
    return *all;
}

}  // namespace emulator::ptx
