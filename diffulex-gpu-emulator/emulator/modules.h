// PTX as the stand-in driver reads it: it runs the same kernels compiled for the CPU, and holds the text against them.
#pragma once
#include <map>
#include <string>
#include <vector>

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
};

Module read_ptx(const std::string& text);

}  // namespace emulator
