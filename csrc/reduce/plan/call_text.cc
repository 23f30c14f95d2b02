#include "reduce/plan/call_text.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "codec/codec.h"

namespace cgx {
namespace {

// Ranks that disagree call one number by different names.
bool same_place(const CallName& a, const CallName& b) {
  return a.number == b.number && point_to_point(a) == point_to_point(b);
}

bool names_a_rank(const std::string& text) {
  static constexpr char kRank[] = "rank ";
  for (size_t at = 0; (at = text.find(kRank, at)) != std::string::npos; ++at) {
    const size_t digit = at + sizeof kRank - 1;
    if (digit < text.size() && text[digit] >= '0' && text[digit] <= '9') return true;
  }
  return text.find("ranks ") != std::string::npos;
}

std::string line_of(const CallSide& side, const CallSide& other, bool hashes) {
  std::string text = str_of("\n  rank ", side.rank, " runs ", side.call);
  const size_t common = std::min(side.details.size(), other.details.size());
  for (size_t i = 0; i < common; ++i) {
    if (side.details[i] != other.details[i]) text += side.details[i];
  }
  if (hashes && side.hash != 0) text += str_of(", plan ", std::hex, side.hash);
  return text;
}

}  // namespace

bool point_to_point(const CallName& call) {
  return call.operation == "send" || call.operation == "recv";
}

std::string CallTitle::text() const {
  return str_of(call.text(), group.empty() ? "" : " of group '" + group + "'", ", rank ", rank,
                " of ", size);
}

std::string error_text(const CallTitle& title, const Failure& failure, const std::string& where,
                       double seconds) {
  std::string text = "cgx: " + title.text();
  if (failure.kind != FailureKind::kMismatch && !where.empty()) {
    text += str_of(" (", where, ", ", seconds_text(seconds), ")");
  }
  text += ": ";
  if (failure.call.number != 0 && !same_place(failure.call, title.call)) {
    text += str_of("after a failure in ", failure.call.text(), ": ");
  }
  if (failure.rank >= 0 && failure.rank != title.rank && !names_a_rank(failure.text)) {
    text += str_of("rank ", failure.rank, " failed: ");
  }
  text += failure.text;
  return failure.kind == FailureKind::kTimeout ? with_limit(std::move(text)) : text;
}

std::string with_limit(std::string text) {
  if (text.find("timeout=") != std::string::npos) return text;
  return std::move(text) +
         "\n  timeout= of init_process_group(), new_group() or the call raises the limit";
}

std::string disagreement(const CallSide& one, const CallSide& other, bool hashes) {
  const bool alike = one.call == other.call && one.details == other.details;
  // In rank order: the text is the same on all ranks.
  const auto [low, high] =
      std::minmax(one, other, [](const CallSide& a, const CallSide& b) { return a.rank < b.rank; });
  return str_of("ranks disagree on the ",
                alike ? "layers, rounding or other settings of the codec:" : "collective:",
                line_of(low, high, hashes), line_of(high, low, hashes));
}

std::string values_text(uint64_t count, const char* dtype) {
  return str_of(" of ", count, " ", dtype, count == 1 ? " value" : " values");
}

std::string step_text(uint64_t step) { return str_of(", step ", step); }

std::string bits_text(int bits) { return bits == 0 ? ", exact" : str_of(", ", bits, " bits"); }

CodecText codec_text(uint8_t family, uint32_t config, const CodecConfig* near) {
  if (family == 0) return {bits_text(0), ""};
  const Family* known = family_of(family);
  if (known == nullptr) return {str_of(", codec number ", int{family}), ""};
  const auto found = config_of_hash(*known, config, near != nullptr ? *near : CodecConfig(*known));
  if (found == nullptr) {
    return {str_of(", compressed by ", known->name), str_of(", configuration ", std::hex, config)};
  }
  const int bits = make_codec(*found)->bits();
  return {bits_text(bits), ", " + found->describe()};
}

}  // namespace cgx
