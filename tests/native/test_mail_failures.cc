// Messages that fail: deadlines, peers that leave, disagreements, damaged memory.
#include <cstring>
#include <thread>

#include "mail.h"

namespace cgx::native {
namespace {

using Clock = std::chrono::steady_clock;

constexpr CommunicatorKind kSharing[] = {CommunicatorKind::kInProcess, CommunicatorKind::kShm};
constexpr int kAny = MailTransfer::kAnyRank;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs `act` soon after this thread has begun to wait for `letter`; returns the text of the error.
template <class E, class Act>
std::string interrupted(Mail& mail, MailTransfer& letter, const Act& act) {
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    act();
  });
  std::exception_ptr error;
  std::string text;
  const auto start = Clock::now();
  try {
    text = error_of<E>([&] { await(mail, letter); });
  } catch (...) {
    error = std::current_exception();
  }
  other.join();
  if (error) std::rethrow_exception(error);
  CHECK(seconds_since(start) < 20);
  return text;
}

}  // namespace

TEST(mail_deadline) {
  for (CommunicatorKind kind : kSharing) {
    for (bool sends : {false, true}) {
      Mails mails(kind, 2);
      auto letter = sends ? post_send(mails[0], 1, 4, letter_bytes(1'000'000, 0))
                          : post_receive(mails[0], 1, 4, 12);
      const auto start = Clock::now();
      const std::string text =
          error_of<TimeoutError>([&] { await(mails[0], *letter, soon(150)); });
      CHECK(seconds_since(start) > 0.14 && seconds_since(start) < 10);
      CHECK(contains(text, "rank 0 waited") && contains(text, "tag 4") &&
                contains(text, sends ? "0 of 1000000 bytes" : "0 of 12 bytes"),
            text);
      // Broken.
      error_of<TimeoutError>([&] { post_receive(mails[0], 1, 4, 12); });
    }
  }
}

TEST(mail_limit_without_a_wait) {
  Mails mails(CommunicatorKind::kShm, 2);
  auto letter = post_receive(mails[0], 1, 0, 12);
  mails[0].limit(letter, soon(50));
  const auto start = Clock::now();
  while (letter->ends == 0) {
    CHECK(seconds_since(start) < 20);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(letter->failure()->kind == FailureKind::kTimeout);
}

TEST(mail_disagreement) {
  for (CommunicatorKind kind : kSharing) {
    for (size_t bytes : {size_t{100}, size_t{1'000'000}}) {
      for (int way = 0; way < 3; ++way) {
        Mails mails(kind, 2);
        auto receive = [&] { return post_receive(mails[1], way == 2 ? kAny : 0, 0, 50, way == 1); };
        auto early = way == 0 ? receive() : nullptr;
        auto sent = post_send(mails[0], 1, 0, letter_bytes(bytes, 1));
        auto letter = early ? early : receive();
        const std::string text = error_of<MismatchError>([&] { await(mails[1], *letter); });
        CHECK(contains(text, str_of("rank 0 sends ", bytes)) && contains(text, "expected 50"), text);
        CHECK(letter->values == std::vector<std::byte>(50), "nothing was written");
        mails.group.ranks[1]->abort(*letter->failure());
        if (bytes > kMailAtOnce) {
          CHECK(contains(error_of<MismatchError>([&] { await(mails[0], *sent); }), text), text);
        }
      }
    }
  }
}

TEST(mail_peer_leaves) {
  for (CommunicatorKind kind : kSharing) {
    for (int way = 0; way < 4; ++way) {
      Mails mails(kind, 2);
      auto sent = post_send(mails[1], 0, 9, letter_bytes(40'000, 1));
      auto letter = way == 0   ? post_receive(mails[0], 1, 4, 12)
                    : way == 1 ? post_receive(mails[0], kAny, 4, 12)
                    : way == 2 ? post_send(mails[0], 1, 4, letter_bytes(1'000'000, 0))
                               : post_receive(mails[0], 1, 4, 500'000);
      std::shared_ptr<Letter> half;
      if (way == 3) half = post_send(mails[1], 0, 4, letter_bytes(500'000, 0));
      // What it had sent before is still there.
      auto good = post_receive(mails[0], 1, 9, 40'000);
      if (way == 3) mails[1].close();
      const std::string text = way == 3 ? error_of<PeerLostError>([&] { await(mails[0], *letter); })
                                        : interrupted<PeerLostError>(mails[0], *letter,
                                                                     [&] { mails[1].close(); });
      CHECK(contains(text, "closed") && contains(text, "tag 4"), text);
      await(mails[0], *good);
      CHECK(good->values == letter_bytes(40'000, 1));
      error_of<PeerLostError>([&] { post_send(mails[0], 1, 4, {}); });
    }
  }
}

TEST(mail_is_delivered_after_the_sender_has_left) {
  for (CommunicatorKind kind : kSharing) {
    Mails mails(kind, 3);
    for (int tag = 0; tag < 3; ++tag) post_send(mails[1], 0, tag, letter_bytes(60'000, tag));
    mails[1].close();
    mails.group.ranks[1].reset();
    for (int tag : {2, 0, 1}) {
      auto letter = post_receive(mails[0], tag == 0 ? kAny : 1, tag, 60'000);
      await(mails[0], *letter);
      CHECK(letter->values == letter_bytes(60'000, tag));
    }
    // One of two others has left: the other may still send.
    auto any = post_receive(mails[0], kAny, 7, 2);
    error_of<PeerLostError>([&] { await(mails[0], *post_send(mails[0], 1, 0, {std::byte(1)})); });
    CHECK(any->over() && any->failure()->kind == FailureKind::kPeerLost);
  }
  Mails mails(CommunicatorKind::kShm, 3);
  auto any = post_receive(mails[0], kAny, 7, 2);
  mails[1].close();
  interrupted<PeerLostError>(mails[0], *any, [&] { mails[2].close(); });
}

TEST(mail_failure_of_the_group) {
  for (CommunicatorKind kind : kSharing) {
    Mails mails(kind, 3);
    auto letter = post_receive(mails[0], 1, 0, 12);
    auto out = post_send(mails[0], 2, 0, letter_bytes(1'000'000, 0));
    const std::string text = interrupted<AbortedError>(mails[0], *letter, [&] {
      mails.group.ranks[2]->abort({FailureKind::kAborted, "the user said so"});
    });
    CHECK(contains(text, "the user said so"), text);
    CHECK(out->over() && out->ends == 1);
  }
}

TEST(mail_closes_while_it_is_waited_for) {
  for (CommunicatorKind kind : kSharing) {
    Mails mails(kind, 2);
    auto letter = post_receive(mails[0], 1, 0, 12);
    const std::string text =
        interrupted<AbortedError>(mails[0], *letter, [&] { mails[0].close(); });
    CHECK(contains(text, "destroyed"), text);
    Mails other(kind, 2);
    auto aborted = post_receive(other[0], 1, 0, 12);
    interrupted<AbortedError>(other[0], *aborted, [&] {
      other[0].abort(*aborted, {FailureKind::kAborted, "this one"});
    });
  }
}

TEST(mail_arguments) {
  Mails mails(CommunicatorKind::kInProcess, 2);
  CHECK(contains(error_of<ConfigError>([&] { post_send(mails[0], 1, -1, {}); }),
                 "tag is -1; allowed: 0 or more"));
  for (int peer : {0, 2, -2}) error_of<ConfigError>([&] { post_send(mails[0], peer, 0, {}); });
  error_of<ConfigError>([&] { post_send(mails[0], kAny, 0, {}); });
}

TEST(mail_damaged_memory) {
  const auto forged = [](const std::function<void(MailRing&, MailPacket&)>& damage) {
    Mails mails(CommunicatorKind::kInProcess, 2);
    const auto theirs = mails.group.ranks[0]->mail();
    MailRing& ring = theirs->own(1);
    MailPacket packet;
    packet.kind = MailPacket::kMessage;
    packet.values = packet.bytes = 12;
    packet.id = 1;
    ring.posted = 128;
    damage(ring, packet);
    std::memcpy(ring.data, &packet, sizeof packet);
    auto letter = post_receive(mails[1], 0, 0, 12);
    return error_of<MismatchError>([&] { await(mails[1], *letter, soon(20'000)); });
  };
  using Damage = std::function<void(MailRing&, MailPacket&)>;
  for (const Damage& damage : std::initializer_list<Damage>{
           [](MailRing& ring, MailPacket&) { ring.posted = uint64_t{1} << 60; },
           [](MailRing& ring, MailPacket&) { ring.posted = kMailRingBytes + 64; },
           [](MailRing& ring, MailPacket&) { ring.posted = 100; },
           [](MailRing&, MailPacket& packet) { packet.kind = 0; },
           [](MailRing&, MailPacket& packet) { packet.kind = 4; },
           [](MailRing&, MailPacket& packet) { packet.tag = -1; },
           [](MailRing&, MailPacket& packet) { packet.bytes = 65; },
           [](MailRing&, MailPacket& packet) { packet.bytes = ~uint64_t{0}; },
           [](MailRing&, MailPacket& packet) { packet.bytes = kMailAtOnce + 1; },
           [](MailRing&, MailPacket& packet) { packet.kind = MailPacket::kPiece; },
           [](MailRing&, MailPacket& packet) {
             packet.kind = MailPacket::kPiece;
             packet.bytes = 0;
           },
           [](MailRing&, MailPacket& packet) { packet.kind = MailPacket::kAnnounce; },
       }) {
    CHECK(contains(forged(damage), "damaged"));
  }
  // What a receiver says to its sender.
  for (int way = 0; way < 4; ++way) {
    Mails mails(CommunicatorKind::kInProcess, 2);
    auto letter = post_send(mails[0], 1, 0, letter_bytes(400'000, 1));
    MailRing& ring = *mails.group.ranks[1]->mail()->of(0);
    ring.grants[0] = way == 0 ? 2 : 1;
    if (way == 2) ring.consumed = uint64_t{1} << 50;
    if (way == 3) ring.consumed = 7;
    ring.granted = way == 1 ? kMailGrants + 1 : 1;
    const std::string text =
        error_of<MismatchError>([&] { await(mails[0], *letter, soon(20'000)); });
    CHECK(contains(text, "damaged"), text);
  }
}

}  // namespace cgx::native
