#include "comm/communicator.h"

#include "base/error.h"

namespace cgx {

void Communicator::make_room(size_t bytes) {
  if (bytes <= capacity()) return;
  throw ConfigError(
      str_of("an exchange of ", bytes, " bytes over ", name(), ", allowed: up to ", capacity()));
}

}  // namespace cgx
