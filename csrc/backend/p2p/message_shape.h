// What both sides of a message must agree on, and what is said where they do not.
#pragma once

#include <cstdint>
#include <string>

#include "backend/adapters/torch_types.h"

namespace cgx {

/// The caller's tensor of a message: its memory may be sent as bytes.
struct MessageShape {
  at::ScalarType dtype;
  int64_t values;

  bool operator==(const MessageShape&) const = default;
};

/// "ranks disagree on a message:" and a line for each side.
std::string message_disagreement(int source, const MessageShape& sent, int rank,
                                 const MessageShape& expected, int tag);

}  // namespace cgx
