#include "comm/hooks.h"

#include "base/error.h"

namespace cgx {

CommunicatorHook& communicator_hook() {
  static CommunicatorHook hook{{nullptr}, [](const std::string& text) { throw Error(text); }};
  return hook;
}

}  // namespace cgx
