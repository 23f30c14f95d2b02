// The identity of a process. A pid is not enough: containers that share /dev/shm may give the same
// pid twice.
#pragma once

#include <cstdint>

namespace cgx {

/// A random number that every thread of this process sees and no other process has; a forked child
/// gets a new one. Never 0. Thread-safe; costs one load after the first call.
uint64_t process_token();

}  // namespace cgx
