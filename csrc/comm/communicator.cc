#include "comm/communicator.h"

#include "base/error.h"

namespace cgx {
namespace {

[[noreturn]] void no_direct_transfers(const Communicator& comm) {
  throw ConfigError(str_of("the communicator ", comm.name(), " has no direct transfers"));
}

}  // namespace

void Communicator::make_room(size_t bytes) {
  if (bytes <= capacity()) return;
  throw ConfigError(
      str_of("an exchange of ", bytes, " bytes over ", name(), ", allowed: up to ", capacity()));
}

std::unique_ptr<Pending> Communicator::send_from(int, int, const std::byte*, size_t) {
  no_direct_transfers(*this);
}

std::unique_ptr<Pending> Communicator::receive_into(int, int, std::byte*, size_t, size_t) {
  no_direct_transfers(*this);
}

void Communicator::finish(Pending&, int, const Deadline&) { no_direct_transfers(*this); }

}  // namespace cgx
