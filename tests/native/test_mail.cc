// Messages between ranks that share memory: order, matching, sizes, many at once.
#include <algorithm>
#include <random>
#include <thread>

#include "mail.h"

namespace cgx::native {
namespace {

constexpr CommunicatorKind kSharing[] = {CommunicatorKind::kInProcess, CommunicatorKind::kShm};
constexpr int kAny = MailTransfer::kAnyRank;

std::vector<size_t> border_sizes() {
  std::vector<size_t> sizes;
  for (size_t border : {kMailUnit, kMailAtOnce, kMailPiece, kMailRingBytes, 2 * kMailRingBytes}) {
    for (size_t size = border - 65; size <= border + 65; size += size == border - 1 ? 1 : 13) {
      sizes.push_back(size);
    }
    sizes.push_back(border);
  }
  return sizes;
}

void send_all(CommunicatorKind kind, const std::vector<size_t>& sizes) {
  Mails mails(kind, 2);
  run_ranks(2, [&](int rank) {
    for (size_t size : sizes) {
      if (rank == 0) {
        await(mails[0], *post_send(mails[0], 1, 3, letter_bytes(size, size)));
      } else {
        auto letter = post_receive(mails[1], 0, 3, size);
        await(mails[1], *letter);
        CHECK(letter->values == letter_bytes(size, size), size, " bytes");
        CHECK(letter->moved() == size && letter->source() == 0 && letter->ends == 1);
      }
    }
  });
}

// What a rank sends to another one: the same on both.
struct Plan {
  int tag;
  size_t bytes;
  uint64_t seed;
};
std::vector<Plan> plan_of(int from, int to, int count) {
  std::mt19937_64 random(static_cast<uint64_t>(from * 100 + to));
  std::vector<Plan> plan;
  for (int i = 0; i < count; ++i) {
    const size_t most = random() % 20 == 0 ? 700'000 : random() % 3 == 0 ? 70'000 : 300;
    plan.push_back({static_cast<int>(random() % 4), random() % most, random()});
  }
  return plan;
}

}  // namespace

TEST(mail_short_sizes) {
  std::vector<size_t> sizes;
  for (size_t size = 0; size <= 400; ++size) sizes.push_back(size);
  for (CommunicatorKind kind : kSharing) send_all(kind, sizes);
}

TEST(mail_border_sizes) {
  for (CommunicatorKind kind : kSharing) send_all(kind, border_sizes());
}

TEST(mail_random_programs) {
  constexpr int kCount = 120;
  for (CommunicatorKind kind : kSharing) {
    for (int size : {2, 4}) {
      Mails mails(kind, size);
      run_ranks(size, [&](int rank) {
        Mail& mail = mails[rank];
        std::mt19937_64 random(static_cast<uint64_t>(rank));
        std::vector<std::shared_ptr<Letter>> sent, received;
        std::vector<std::vector<std::byte>> expected;
        // Posts in rounds: tags of a peer in any order, each tag in its own.
        std::vector<std::vector<Plan>> out, in;
        for (int peer = 0; peer < size; ++peer) {
          const int count = peer == rank ? 0 : kCount;
          out.push_back(plan_of(rank, peer, count));
          in.push_back(plan_of(peer, rank, count));
          std::stable_sort(in.back().begin(), in.back().end(), [&](const Plan& a, const Plan& b) {
            return (a.tag + rank) % 4 < (b.tag + rank) % 4;
          });
        }
        for (int i = 0; i < kCount; ++i) {
          for (int peer = 0; peer < size; ++peer) {
            if (peer == rank) continue;
            const Plan& next = out[static_cast<size_t>(peer)][static_cast<size_t>(i)];
            sent.push_back(
                post_send(mail, peer, next.tag, letter_bytes(next.bytes, next.seed)));
            const Plan& other = in[static_cast<size_t>(peer)][static_cast<size_t>(i)];
            received.push_back(post_receive(mail, peer, other.tag, other.bytes));
            expected.push_back(letter_bytes(other.bytes, other.seed));
          }
          if (random() % 16 == 0) await(mail, *sent[random() % sent.size()]);
        }
        for (size_t i = 0; i < received.size(); ++i) {
          await(mail, *received[i]);
          CHECK(received[i]->values == expected[i]);
        }
        for (auto& letter : sent) await(mail, *letter);
        for (auto& letter : sent) CHECK(letter->ends == 1);
      });
    }
  }
}

TEST(mail_any_rank) {
  for (CommunicatorKind kind : kSharing) {
    constexpr int kSize = 4, kEach = 50;
    Mails mails(kind, kSize);
    run_ranks(kSize, [&](int rank) {
      Mail& mail = mails[rank];
      if (rank > 0) {
        for (int i = 0; i < kEach; ++i) {
          const size_t bytes = i % 10 == 9 ? 100'000 : 100;
          await(mail, *post_send(mail, 0, i % 10 == 9, letter_bytes(bytes, rank * 1000u + i)));
        }
        return;
      }
      std::vector<int> seen(kSize, 0), seen_long(kSize, 0);
      for (int i = 0; i < 3 * kEach; ++i) {
        const bool is_long = i % 10 == 9;
        auto letter = post_receive(mail, kAny, is_long, is_long ? 100'000 : 100);
        await(mail, *letter);
        const int source = letter->source();
        // The n-th message of that kind from this rank.
        const int before = is_long ? seen_long[source]++ : seen[source]++;
        const int number = is_long ? before * 10 + 9 : before / 9 * 10 + before % 9;
        CHECK(letter->values == letter_bytes(letter->values.size(), source * 1000u + number));
      }
    });
  }
}

TEST(mail_earlier_receives_match_first) {
  Mails mails(CommunicatorKind::kInProcess, 3);
  auto first = post_receive(mails[0], kAny, 5, 2);
  auto second = post_receive(mails[0], 1, 5, 2);
  auto third = post_receive(mails[0], kAny, 5, 2);
  for (int i = 0; i < 3; ++i) post_send(mails[1], 0, 5, {std::byte(i), std::byte(i)});
  for (auto& letter : {first, second, third}) await(mails[0], *letter);
  CHECK(first->values[0] == std::byte(0) && second->values[0] == std::byte(1) &&
        third->values[0] == std::byte(2));
  // Messages that came before: in the order in which they came.
  post_send(mails[2], 0, 7, {std::byte(7)});
  post_send(mails[2], 0, 6, {std::byte(6)});
  auto later = post_receive(mails[0], 2, 6, 1);
  await(mails[0], *later);
  post_send(mails[1], 0, 7, {std::byte(8)});
  auto one = post_receive(mails[0], kAny, 7, 1), two = post_receive(mails[0], kAny, 7, 1);
  await(mails[0], *one);
  await(mails[0], *two);
  CHECK(one->source() == 2 && two->source() == 1);
}

TEST(mail_both_directions_at_once) {
  for (CommunicatorKind kind : kSharing) {
    constexpr size_t kBytes = 8'000'003;
    Mails mails(kind, 2);
    run_ranks(2, [&](int rank) {
      auto out = post_send(mails[rank], 1 - rank, 0, letter_bytes(kBytes, rank));
      auto in = post_receive(mails[rank], 1 - rank, 0, kBytes);
      await(mails[rank], *out);
      await(mails[rank], *in);
      CHECK(in->values == letter_bytes(kBytes, 1 - rank));
    });
  }
}

TEST(mail_moves_while_nobody_waits) {
  for (CommunicatorKind kind : kSharing) {
    Mails mails(kind, 2);
    auto out = post_send(mails[0], 1, 0, letter_bytes(3'000'000, 1));
    auto in = post_receive(mails[1], 0, 0, 3'000'000);
    const Deadline deadline = patience();
    while (!in->over() || !out->over() || in->ends == 0) {
      CHECK(!deadline.expired());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(in->values == letter_bytes(3'000'000, 1));
    // After a rest, too: the threads have gone to sleep.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    auto more = post_receive(mails[1], 0, 1, 200'000);
    auto sent = post_send(mails[0], 1, 1, letter_bytes(200'000, 2));
    while (!more->over()) {
      CHECK(!deadline.expired());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(more->values == letter_bytes(200'000, 2));
  }
}

TEST(mail_many_threads_of_a_rank) {
  for (CommunicatorKind kind : kSharing) {
    constexpr int kThreads = 4, kRounds = 60;
    Mails mails(kind, 2);
    run_ranks(2 * kThreads, [&](int number) {
      const int rank = number % 2, tag = number / 2;
      Mail& mail = mails[rank];
      for (int i = 0; i < kRounds; ++i) {
        const size_t bytes = (i * 7919u + tag) % (i % 8 == 0 ? 300'000 : 2000);
        auto in = post_receive(mail, 1 - rank, tag, bytes);
        auto out = post_send(mail, 1 - rank, tag, letter_bytes(bytes, tag * 100u + rank));
        await(mail, *in);
        await(mail, *out);
        CHECK(in->values == letter_bytes(bytes, tag * 100u + (1 - rank)));
        mail.poll();
      }
    });
  }
}

TEST(mail_storm) {
  // More than the ring holds, received in the opposite order of tags.
  for (CommunicatorKind kind : kSharing) {
    constexpr int kCount = 2000;
    Mails mails(kind, 2);
    run_ranks(2, [&](int rank) {
      std::vector<std::shared_ptr<Letter>> all;
      for (int i = 0; i < kCount; ++i) {
        const int tag = rank == 0 ? i : kCount - 1 - i;
        all.push_back(rank == 0 ? post_send(mails[0], 1, tag, letter_bytes(500, tag))
                                : post_receive(mails[1], 0, tag, 500));
      }
      for (auto& letter : all) {
        await(mails[rank], *letter);
        CHECK(rank == 0 || letter->values == letter_bytes(500, letter->tag));
      }
    });
  }
}

TEST(mail_takes_no_memory_before_a_message) {
  Mails mails(CommunicatorKind::kInProcess, 2);
  const auto memory = mails.group.ranks[1]->mail();
  CHECK(memory->of(0) == nullptr);
  post_send(mails[0], 1, 0, {std::byte(1)});
  CHECK(memory->of(0) != nullptr);
}

}  // namespace cgx::native
