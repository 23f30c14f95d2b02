#include "reduce/tuning/shared_clock.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cgx {
namespace {

constexpr int kBits = 22;  // of an integer that fp32 holds exactly, with room to spare
constexpr int64_t kMask = (int64_t{1} << kBits) - 1;

}  // namespace

void pack(const Span& span, std::vector<float>& numbers) {
  const auto begin = static_cast<uint64_t>(span.begin);
  for (int digit = 0; digit < 3; ++digit) {
    numbers.push_back(static_cast<float>(static_cast<int64_t>(begin >> (digit * kBits)) & kMask));
  }
  numbers.push_back(static_cast<float>(span.end - span.begin));
}

Span unpack_span(const float* numbers) {
  uint64_t begin = 0;
  for (int digit = 0; digit < 3; ++digit) {
    begin |= static_cast<uint64_t>(numbers[digit]) << (digit * kBits);
  }
  Span span;
  span.begin = static_cast<int64_t>(begin);
  span.end = span.begin + static_cast<int64_t>(numbers[3]);
  return span;
}

SharedClock::SharedClock(int size, bool one_clock)
    : one_clock_(one_clock), zero_(static_cast<size_t>(size), 0) {}

void SharedClock::meet(const std::vector<Span>& by_rank) {
  if (one_clock_) return;
  for (const Span& span : by_rank) {
    if (span.empty()) return;  // as little known as before
  }
  if (meetings_.empty()) {
    for (size_t rank = 0; rank < zero_.size(); ++rank) zero_[rank] = by_rank[rank].begin;
  }
  const auto middle = [&](size_t rank) {
    const Span& span = by_rank[rank];
    return static_cast<double>(span.begin - zero_[rank]) +
           static_cast<double>(span.end - span.begin) / 2;
  };
  Meeting now;
  now.at = middle(0);
  for (size_t rank = 0; rank < zero_.size(); ++rank) now.ahead.push_back(middle(rank) - now.at);
  meetings_.push_back(std::move(now));
  if (meetings_.size() > kMeetings) meetings_.pop_front();
}

double SharedClock::ahead(size_t rank, double at) const {
  if (meetings_.empty()) return 0;
  const auto when = [rank](const Meeting& one) { return one.at + one.ahead[rank]; };
  const auto next = std::find_if(meetings_.begin(), meetings_.end(),
                                 [&](const Meeting& one) { return when(one) > at; });
  if (next == meetings_.begin()) return next->ahead[rank];
  const Meeting& before = *std::prev(next);
  if (next == meetings_.end()) return before.ahead[rank];
  const double share = (at - when(before)) / (when(*next) - when(before));
  return before.ahead[rank] + share * (next->ahead[rank] - before.ahead[rank]);
}

double SharedClock::seconds(const std::vector<Span>& by_rank) const {
  int64_t begin = 0, end = 0, least = 0, most = 0;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const Span& span = by_rank[rank];
    if (span.empty()) return 0;
    int64_t moved = span.begin - zero_[rank];
    if (!one_clock_) moved -= static_cast<int64_t>(ahead(rank, static_cast<double>(moved)));
    const int64_t length = span.end - span.begin;
    begin = rank == 0 ? moved : std::max(begin, moved);
    end = rank == 0 ? moved + length : std::max(end, moved + length);
    least = rank == 0 ? length : std::min(least, length);
    most = rank == 0 ? length : std::max(most, length);
  }
  return 1e-9 * static_cast<double>(std::clamp(end - begin, least, most));
}

}  // namespace cgx
