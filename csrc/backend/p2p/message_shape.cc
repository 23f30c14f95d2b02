#include "backend/p2p/message_shape.h"

#include "backend/work/call_record.h"
#include "base/error.h"

namespace cgx {
namespace {

std::string text_of_shape(const MessageShape& shape) {
  const bool known = shape.dtype < at::ScalarType::NumOptions;
  const std::string bytes =
      known ? str_of(" (", shape.values * static_cast<int64_t>(c10::elementSize(shape.dtype)),
                     " bytes)")
            : "";
  const std::string text =
      values_text(static_cast<uint64_t>(shape.values), known ? name_of(shape.dtype) : "unknown");
  return text.substr(sizeof " of " - 1) + bytes;
}

}  // namespace

std::string message_disagreement(int source, const MessageShape& sent, int rank,
                                 const MessageShape& expected, int tag) {
  return str_of("ranks disagree on a message", tag == 0 ? "" : str_of(" with tag ", tag),
                ":\n  rank ", source, " sends ", text_of_shape(sent), " to rank ", rank,
                "\n  rank ", rank, " receives ", text_of_shape(expected));
}

}  // namespace cgx
