#include "jitter.h"

#include "../machine.h"

namespace emulator::ptx {

u64 jitter_seed() { return machine().jitter; }

}  // namespace emulator::ptx
