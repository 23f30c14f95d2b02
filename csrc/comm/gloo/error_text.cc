#include "comm/gloo/error_text.h"

#include <c10/util/Exception.h>

namespace cgx {

std::string plain_text(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  // "[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2590. This is
  // typically caused by a remote worker crashing. ..."
  const size_t place = text.rfind('[', text.find(".cc:"));
  const size_t end = text.find("] ", place == std::string::npos ? 0 : place);
  if (place != std::string::npos && text.find(".cc:") < end && end != std::string::npos) {
    text.erase(place, end + 2 - place);
  }
  return text.substr(0, text.find(". This is typically caused by"));
}

}  // namespace cgx
