// The duration of a call for a group: from the moment when its last rank begins to the moment when
// its last rank has ended. It does not include the wait for a late rank.
//
// Ranks of one host read the same clock. Between hosts the offset of a rank's clock comes from
// exchanges in which all ranks were in step: their middles were at the same moment, to half the
// duration of the exchange. Clocks also run at different rates, so the offset is interpolated
// between two such exchanges, of the last kMeetings.
//
// Uses only integers and + - * / on doubles: equal numbers give equal results on every rank. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace cgx {

/// Begin and end of a call on one rank, in nanoseconds of its own steady clock. begin == end: not
/// recorded.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin == end; }
  bool operator==(const Span&) const = default;
};

/// Spans as fp32 numbers that are exact and finite, kFloatsPerSpan each, so that a lossless
/// all-gather of fp32 carries them. A span's length is rounded to 24 bits.
inline constexpr size_t kFloatsPerSpan = 4;
void pack(const Span& span, std::vector<float>& numbers);
Span unpack_span(const float* numbers);

class SharedClock {
 public:
  /// one_clock: all ranks read the same one.
  SharedClock(int size, bool one_clock);

  static constexpr size_t kMeetings = 64;

  bool one_clock() const { return one_clock_; }
  bool has_met() const { return !meetings_.empty(); }

  /// Adds the spans, by rank, of an exchange that no rank could end before all had begun. To be
  /// called in the order of time; not needed with one clock.
  void meet(const std::vector<Span>& by_rank);

  /// Seconds of a call; 0 if a rank has nothing. At least the shortest, and at most the longest, of
  /// the ranks' own times.
  double seconds(const std::vector<Span>& by_rank) const;

 private:
  struct Meeting {
    double at = 0;              // of rank 0's clock
    std::vector<double> ahead;  // by rank: its clock minus rank 0's
  };
  /// Nanoseconds that the rank's clock is ahead of rank 0's when its own says `at`.
  double ahead(size_t rank, double at) const;

  const bool one_clock_;
  std::vector<int64_t> zero_;     // by rank: what its clock is counted from
  std::deque<Meeting> meetings_;  // the latest last
};

}  // namespace cgx
