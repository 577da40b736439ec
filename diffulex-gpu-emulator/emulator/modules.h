// PTX as the stand-in driver reads it: either it runs the same kernels compiled for the CPU, and holds the text's names and
// arguments against them, or it runs the text.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "ptx/program.h"

namespace emulator {

struct Entry {
    // Sizes of the arguments in bytes.
    std::vector<int> arguments;
    // The most threads of a block; 0 where the text sets none.
    unsigned most_threads;
};

struct Module {
    std::map<std::string, Entry> entries;
    // Errors of cuModuleLoadData: 0, or a CUresult.
    int error;
    // The decoded kernels, where the text is to run.
    ptx::Programs programs;
    bool runs_ptx = false;
    // What the engine does not know in it.
    std::string what_is_wrong;
};

Module read_ptx(const std::string& text);
// As `read_ptx`, and decodes the kernels. The variable DIFFULEX_EMULATOR_PTX names a file of PTX that takes the place of a
// module with the same first kernel.
Module decode_ptx(const std::string& text);

}  // namespace emulator
