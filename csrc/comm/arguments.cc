#include "comm/arguments.h"

#include "base/error.h"

namespace cgx {

void check_rank(int rank, int size) {
  if (size < 1) throw ConfigError(str_of("world size is ", size, ", allowed: 1 or more"));
  if (rank < 0 || rank >= size) {
    throw ConfigError(str_of("rank is ", rank, ", allowed: 0 to ", size - 1));
  }
}

void check_peer(int peer, int rank, int size) {
  if (peer < 0 || peer >= size || peer == rank) {
    throw ConfigError(str_of("peer is ", peer, ", allowed on rank ", rank, ": 0 to ", size - 1,
                             " except ", rank));
  }
}

void check_exchange(const std::vector<size_t>& bytes_to, int rank, int size, size_t capacity) {
  if (bytes_to.size() != static_cast<size_t>(size)) {
    throw ConfigError(
        str_of("open() got sizes for ", bytes_to.size(), " ranks, the group has ", size));
  }
  if (bytes_to[rank] != 0) {
    throw ConfigError(str_of("open() on rank ", rank, " asks for a message of ", bytes_to[rank],
                             " bytes to itself, allowed: 0"));
  }
  size_t left = capacity;
  for (int peer = 0; peer < size; ++peer) {
    if (bytes_to[peer] > left) {
      throw ConfigError(str_of("an exchange of rank ", rank, " does not fit: ", bytes_to[peer],
                               " bytes for rank ", peer, " after ", capacity - left,
                               " bytes for the ranks before it, allowed: ", capacity,
                               " bytes in all"));
    }
    left -= bytes_to[peer];
  }
}

void check_broadcast(size_t bytes, size_t capacity) {
  if (bytes > capacity) {
    throw ConfigError(
        str_of("a broadcast of ", bytes, " bytes does not fit, allowed: ", capacity, " bytes"));
  }
}

}  // namespace cgx
