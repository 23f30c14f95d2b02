#include "reduce/tuning/rank_numbers.h"

#include <cstddef>

namespace cgx {

std::vector<float> RankNumbers::gather(const std::vector<float>& mine, const Deadline& deadline,
                                       uint64_t number) {
  std::vector<float> all(mine.size() * static_cast<size_t>(engine_.size()));
  const auto plan =
      engine_.plan_shards(Operation::kAllGather, mine.size(), raw_codec(), DType::kFloat32);
  engine_.run(*plan, mine.data(), all.data(), false, deadline, number, &overhead_);
  return all;
}

std::vector<std::vector<Span>> RankNumbers::gather_spans(const std::vector<Span>& mine,
                                                         const Deadline& deadline,
                                                         uint64_t number) {
  std::vector<float> numbers;
  for (const Span& span : mine) pack(span, numbers);
  const std::vector<float> all = gather(numbers, deadline, number);
  std::vector<std::vector<Span>> by_rank(static_cast<size_t>(engine_.size()));
  const float* next = all.data();
  for (std::vector<Span>& theirs : by_rank) {
    for (size_t i = 0; i < mine.size(); ++i, next += kFloatsPerSpan) {
      theirs.push_back(unpack_span(next));
    }
  }
  return by_rank;
}

}  // namespace cgx
