// Runs a kernel's PTX, block by block, warp by warp.
#pragma once
#include "../launch.h"
#include "program.h"

namespace emulator::ptx {

// As emulator::run, with the bytes of each argument.
std::string run(const std::shared_ptr<const Program>& program, const Launch& launch, const std::vector<std::vector<char>>& arguments);

}  // namespace emulator::ptx
