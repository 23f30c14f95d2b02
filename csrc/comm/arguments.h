// Checks of arguments, the same for every communicator. All throw ConfigError.
#pragma once

#include <cstddef>
#include <vector>

namespace cgx {

/// 0 <= rank < size, 1 <= size.
void check_rank(int rank, int size);

/// A peer is another rank of the group.
void check_peer(int peer, int rank, int size);

/// The arguments of Messages::open(): one entry per rank, none to oneself, not more than
/// `capacity` in all.
void check_exchange(const std::vector<size_t>& bytes_to, int rank, int size, size_t capacity);

/// The argument of Messages::open_broadcast().
void check_broadcast(size_t bytes, size_t capacity);

}  // namespace cgx
