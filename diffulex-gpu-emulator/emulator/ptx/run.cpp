#include "run.h"

#include <algorithm>
#include <cstring>

#include "../shadow.h"
#include "../threads.h"
#include "warp.h"

// Defined in launch.cpp.
extern emulator::Dimensions blockIdx, blockDim, gridDim;

namespace emulator::ptx {

Block block;

void speak_for(const Warp& warp, u32 lane) { self = &threads[warp.first_thread + lane]; }

// Warps of the running block. Kept from launch to launch, with the memory of their registers.
static std::vector<Warp> warps;
static std::vector<unsigned char> registers;
constexpr size_t ALIGNMENT = 64;

static unsigned char* first_register() { return (unsigned char*)(((uintptr_t)registers.data() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT); }

// The lanes of a register, all with this value.
static void fill(unsigned char* at, Width width, u64 bits) {
    for (int i = 0; i < LANES; i++)
        if (width == Width::Double) ((u64*)at)[i] = bits;
        else ((u32*)at)[i] = (u32)bits;
}

static void begin_launch_of(const Program& program, size_t n_threads) {
    size_t n_warps = (n_threads + LANES - 1) / LANES;
    warps.resize(n_warps);
    registers.resize(n_warps * program.n_bytes + ALIGNMENT);
    threads.resize(n_threads);
    for (size_t i = 0; i < n_threads; i++) {
        Thread& thread = threads[i];
        thread.id = (int)i;
        thread.index = {unsigned(i % blockDim.x), unsigned(i / blockDim.x % blockDim.y), unsigned(i / blockDim.x / blockDim.y)};
    }
    for (size_t i = 0; i < n_warps; i++) {
        Warp& warp = warps[i];
        warp.registers = first_register() + i * program.n_bytes;
        warp.code = program.code.data();
        warp.first_thread = u32(i * LANES);
        size_t n_lanes = std::min<size_t>(n_threads - i * LANES, LANES);
        warp.all = n_lanes == LANES ? ~0u : (1u << n_lanes) - 1;
        for (const Constant& constant : program.constants) fill(warp.registers + constant.at, constant.width, constant.bits);
    }
}

static u32 value_of(Special special, const Thread& thread, u32 lane) {
    switch (special) {
        case Special::TidX: return thread.index.x;
        case Special::TidY: return thread.index.y;
        case Special::TidZ: return thread.index.z;
        case Special::NtidX: return blockDim.x;
        case Special::NtidY: return blockDim.y;
        case Special::NtidZ: return blockDim.z;
        case Special::CtaidX: return blockIdx.x;
        case Special::CtaidY: return blockIdx.y;
        case Special::CtaidZ: return blockIdx.z;
        case Special::NctaidX: return gridDim.x;
        case Special::NctaidY: return gridDim.y;
        case Special::NctaidZ: return gridDim.z;
        case Special::LaneId: return lane;
    }
    return 0;
}

static void begin_warp(const Program& program, Warp& warp) {
    warp.live = warp.all;
    warp.waiting = 0;
    warp.barrier = nullptr;
    warp.at = warp.code;
    warp.join = (const Instruction*)UINTPTR_MAX;
    warp.set_mask(warp.all);
    for (int i = 0; i < LANES; i++) {
        warp.flights[i].clear();
        warp.n_groups[i] = 0;
    }
    for (auto& [special, at] : program.specials)
        for_lanes(warp.all, [&](u32 i) { warp.lanes<u32>(at)[i] = value_of(special, threads[warp.first_thread + i], i); });
}

// Until the warp has ended or waits at a barrier of the block.
static void run_warp(Warp& warp) {
    for (;;) {
        const Instruction& in = *warp.at++;
        in.run(warp, in);
        if (warp.barrier) return;
        if (warp.at < warp.join) continue;
        if (warp.choose()) continue;
        if (!warp.live) return;
        speak_for(warp, __builtin_ctz(warp.live));
        fail("deadlock: lanes of a warp wait for one another at different places");
    }
}

// The result of bar.red, by the third letter of its name: popc, and, or.
static void end_barrier(Warp& warp, const Program& program, u32 n_threads) {
    const Instruction& in = *warp.barrier;
    const std::string& text = program.texts[&in - warp.code].second;
    warp.barrier = nullptr;
    if (text.find("bar.red") == std::string::npos) return;
    bool is_count = text.find(".popc") != std::string::npos, is_and = text.find(".and") != std::string::npos;
    u32 result = is_count ? block.n_votes : (is_and ? block.n_votes == n_threads : block.n_votes > 0) ? ~0u : 0;
    for_lanes(warp.mask, [&](u32 i) { warp.lanes<u32>(in.at[0])[i] = result; });
}

static void run_block(const Program& program, size_t n_threads) {
    begin_block();
    block.n_arrived = block.n_votes = 0;
    std::vector<Warp*> ready;
    for (Warp& warp : warps) {
        begin_warp(program, warp);
        ready.push_back(&warp);
    }
    block.first_lane = draw(LANES);
    while (!ready.empty()) {
        while (!ready.empty()) {
            size_t pick = draw(ready.size());
            Warp& warp = *ready[pick];
            ready[pick] = ready.back();
            ready.pop_back();
            run_warp(warp);
        }
        if (!block.n_arrived) break;
        const Instruction* at = nullptr;
        for (Warp& warp : warps) {
            speak_for(warp, 0);
            if (!warp.barrier) fail("a barrier waits for threads that have ended");
            if (at && at->run != warp.barrier->run) fail("threads of a block meet at barriers of different kinds");
            if (at && at->number != warp.barrier->number) fail("threads of a block meet at barriers %lld and %lld", (long long)at->number, (long long)warp.barrier->number);
            at = warp.barrier;
        }
        barrier_of_block();
        for (Warp& warp : warps) {
            end_barrier(warp, program, (u32)n_threads);
            ready.push_back(&warp);
        }
        block.n_arrived = block.n_votes = 0;
    }
    self = nullptr;
}

// The instruction at which a thread has failed.
static std::string place_of(const Program& program) {
    if (!self) return "";
    const Warp& warp = warps[self->id / LANES];
    size_t index = warp.at - 1 - warp.code;
    if (index >= program.texts.size()) return "";
    return ", line " + std::to_string(program.texts[index].first) + ": " + program.texts[index].second;
}

std::string run(const std::shared_ptr<const Program>& program, const Launch& launch, const std::vector<std::vector<char>>& arguments) {
    block.program = program.get();
    block.arguments = arguments;
    block.n_shared = program->n_static_shared + launch.shared;
    size_t n_threads = (size_t)launch.block.x * launch.block.y * launch.block.z;
    begin(launch);
    begin_launch(block.n_shared);
    begin_launch_of(*program, n_threads);
    std::string failure;
    try {
        for_blocks(launch, [&] { run_block(*program, n_threads); });
    } catch (const Failed& failed) {
        failure = failed.text + place_of(*program);
    }
    self = nullptr;
    return failure;
}

}  // namespace emulator::ptx
