#include "comm/mail/matching.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cgx {

void Matching::add(const MailTransferPtr& receive) {
  if (tags_.size() > many_tags_) tidy();
  tags_[receive->tag].posted.push_back(receive);
  ++count_of(receive->peer);
}

MailTransferPtr Matching::take(int source, int tag) {
  const auto found = tags_.find(tag);
  if (found == tags_.end()) return nullptr;
  auto& posted = found->second.posted;
  const auto first = std::find_if(posted.begin(), posted.end(), [source](const auto& receive) {
    return receive->peer == source || receive->peer == MailTransfer::kAnyRank;
  });
  if (first == posted.end()) return nullptr;
  MailTransferPtr receive = std::move(*first);
  posted.erase(first);
  --count_of(receive->peer);
  return receive;
}

void Matching::keep(Kept message) {
  if (tags_.size() > many_tags_) tidy();
  tags_[message.packet.tag].kept.push_back(std::move(message));
}

std::optional<Matching::Kept> Matching::take_kept(const MailTransfer& receive) {
  const auto found = tags_.find(receive.tag);
  if (found == tags_.end()) return std::nullopt;
  auto& kept = found->second.kept;
  const auto first = std::find_if(kept.begin(), kept.end(), [&receive](const Kept& message) {
    return receive.peer == message.source || receive.peer == MailTransfer::kAnyRank;
  });
  if (first == kept.end()) return std::nullopt;
  std::optional<Kept> message(std::move(*first));
  kept.erase(first);
  return message;
}

MailTransferPtr Matching::first(int source) const {
  MailTransferPtr oldest;
  for (const auto& [tag, queues] : tags_) {
    for (const MailTransferPtr& receive : queues.posted) {
      if (receive->peer != source) continue;
      if (!oldest || receive->since < oldest->since) oldest = receive;
    }
  }
  return oldest;
}

std::vector<MailTransferPtr> Matching::clear() {
  std::vector<MailTransferPtr> all;
  for (auto& [tag, queues] : tags_) {
    std::move(queues.posted.begin(), queues.posted.end(), std::back_inserter(all));
  }
  tags_.clear();
  from_any_ = 0;
  std::fill(from_.begin(), from_.end(), size_t{0});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a->since < b->since; });
  return all;
}

void Matching::tidy() {
  std::erase_if(tags_, [](const auto& entry) {
    return entry.second.posted.empty() && entry.second.kept.empty();
  });
  many_tags_ = std::max(many_tags_, 2 * tags_.size());
}

}  // namespace cgx
