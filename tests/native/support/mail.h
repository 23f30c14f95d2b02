// Ranks with a mail each, and messages that hold their values.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "comm/mail/mail.h"
#include "groups.h"

namespace cgx::native {

class Letter final : public MailTransfer {
 public:
  Letter(Way way, int peer, int tag, std::vector<std::byte> bytes, uint32_t type = 0)
      : MailTransfer(way, peer, tag, {type, bytes.size(), bytes.size()}, bytes.data()),
        values(std::move(bytes)) {}
  void ended() override { ++ends; }

  const std::vector<std::byte> values;
  std::atomic<int> ends{0};
};

/// Bytes that depend on sender, tag, number and place.
inline std::vector<std::byte> letter_bytes(size_t bytes, uint64_t seed) {
  std::vector<std::byte> values(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 64 == 0) state = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9u + i;
    values[i] = static_cast<std::byte>(state >> (i % 8 * 8));
  }
  return values;
}

inline std::shared_ptr<Mail> open_mail(Communicator& comm) {
  return Mail::make(comm.mail(), [](int source, const MailShape& sent, const MailTransfer& receive) {
    return str_of("rank ", source, " sends ", sent.values, " of type ", sent.type, ", expected ",
                  receive.shape.values, " of type ", receive.shape.type);
  });
}

/// Communicators and mails of all ranks; they are closed at the end.
struct Mails {
  Mails(CommunicatorKind kind, int size) : group(make_group(kind, size, 1000)) {
    for (auto& comm : group.ranks) ranks.push_back(open_mail(*comm));
  }
  ~Mails() {
    for (auto& mail : ranks) mail->close();
  }
  Mail& operator[](int rank) { return *ranks[static_cast<size_t>(rank)]; }

  Group group;
  std::vector<std::shared_ptr<Mail>> ranks;
};

inline std::shared_ptr<Letter> post_send(Mail& mail, int peer, int tag,
                                         std::vector<std::byte> bytes, uint32_t type = 0) {
  auto letter = std::make_shared<Letter>(MailTransfer::Way::kSend, peer, tag, std::move(bytes), type);
  mail.post(letter);
  return letter;
}
inline std::shared_ptr<Letter> post_receive(Mail& mail, int peer, int tag, size_t bytes,
                                            uint32_t type = 0) {
  auto letter = std::make_shared<Letter>(MailTransfer::Way::kReceive, peer, tag,
                                         std::vector<std::byte>(bytes), type);
  mail.post(letter);
  return letter;
}
/// Throws the failure of the transfer.
inline void await(Mail& mail, MailTransfer& letter, const Deadline& deadline = patience()) {
  mail.wait(letter, deadline);
  CHECK(letter.over());
  if (letter.failure()) throw_failure(*letter.failure());
}

}  // namespace cgx::native
