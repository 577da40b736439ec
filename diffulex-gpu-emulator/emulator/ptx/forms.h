// The table of instructions: by opcode with all its modifiers, what its operands are, and what it does.
#pragma once
#include <string_view>
#include <unordered_map>
#include <vector>

#include "warp.h"

namespace emulator::ptx {

// Operands as letters: p h w d is a predicate or 16, 32 or 64 bits, in capitals where it is written; A an address of 64 bits,
// a one of 32; M a parameter; # a number, 6 the number 16; L a label. Braces, and the bar of a pair whose second may be missing, stand as they are.
struct Form {
    const char* operands;
    Run run;
};

class Forms {
public:
    void add(const char* opcode, const char* operands, Run run) { all[opcode].push_back({operands, run}); }
    const std::vector<Form>* find(std::string_view opcode) const {
        auto found = all.find(opcode);
        return found == all.end() ? nullptr : &found->second;
    }

private:
    std::unordered_map<std::string_view, std::vector<Form>> all;
};

const Forms& forms();

void add_integer(Forms& forms);
void add_logic(Forms& forms);
void add_float(Forms& forms);
void add_conversions(Forms& forms);
void add_memory(Forms& forms);
void add_copies(Forms& forms);
void add_warp(Forms& forms);
void add_matrix(Forms& forms);
void add_control(Forms& forms);

// One result of one, two or three values, in each lane that runs.
template <class D, class A, class F> void map1(Warp& warp, const Instruction& in, F f) {
    D* d = warp.lanes<D>(in.at[0]);
    const A* a = warp.lanes<A>(in.at[1]);
    const u32* active = warp.active;
#pragma GCC ivdep
    for (int i = 0; i < LANES; i++) {
        D result = f(a[i]);
        d[i] = active[i] ? result : d[i];
    }
}
template <class D, class A, class B, class F> void map2(Warp& warp, const Instruction& in, F f) {
    D* d = warp.lanes<D>(in.at[0]);
    const A* a = warp.lanes<A>(in.at[1]);
    const B* b = warp.lanes<B>(in.at[2]);
    const u32* active = warp.active;
#pragma GCC ivdep
    for (int i = 0; i < LANES; i++) {
        D result = f(a[i], b[i]);
        d[i] = active[i] ? result : d[i];
    }
}
template <class D, class A, class B, class C, class F> void map3(Warp& warp, const Instruction& in, F f) {
    D* d = warp.lanes<D>(in.at[0]);
    const A* a = warp.lanes<A>(in.at[1]);
    const B* b = warp.lanes<B>(in.at[2]);
    const C* c = warp.lanes<C>(in.at[3]);
    const u32* active = warp.active;
#pragma GCC ivdep
    for (int i = 0; i < LANES; i++) {
        D result = f(a[i], b[i], c[i]);
        d[i] = active[i] ? result : d[i];
    }
}

// For the tables: a name, operands, and an expression of a, b and c.
#define PTX_RUN1(D, A, ...) [](Warp& warp, const Instruction& in) { map1<D, A>(warp, in, [](A a) -> D { return __VA_ARGS__; }); }
#define PTX_RUN2(D, A, B, ...) [](Warp& warp, const Instruction& in) { map2<D, A, B>(warp, in, [](A a, B b) -> D { return __VA_ARGS__; }); }
#define PTX_RUN3(D, A, B, C, ...) [](Warp& warp, const Instruction& in) { map3<D, A, B, C>(warp, in, [](A a, B b, C c) -> D { return __VA_ARGS__; }); }

}  // namespace emulator::ptx
