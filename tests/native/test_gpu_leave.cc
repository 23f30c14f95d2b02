// What becomes of memory that ranks have opened in each other when their communicators end: it is
// freed where all peers have said that they have closed it, and kept where one has not. The stub
// driver ends this program where memory is freed that a peer has open (STUB_DRIVER_STRICT).
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/gpu/ipc.h"
#include "comm/in_process.h"
#include "device/queue.h"
#include "groups.h"
#include "stub.h"

namespace cgx::native {
namespace {

using device::Driver;
using device::Queue;

constexpr size_t kCapacity = 4096;
constexpr long long kBytes = 2 << 20;  // of a rank: a page of the driver

struct Rank {
  Rank() : in(Driver::get(), kContext), queue(Driver::get(), new_stream(Driver::get())) {}
  ~Rank() {
    comm.reset();
    Driver::get().destroy_stream(queue.stream());
  }
  const device::InContext in;
  const Queue queue;
  std::unique_ptr<Communicator> comm;
};

struct Ranks {
  explicit Ranks(int size) : control(make_in_process_group(size, kIpcControlBytes * 4)) {
    for (int rank = 0; rank < size; ++rank) all.push_back(std::make_unique<Rank>());
  }

  // `process`: of a rank, to the stub.
  void connect(int rank, Rendezvous& rendezvous, int process, const Deadline& deadline) {
    const AsProcess own(process);
    const device::InContext here(Driver::get(), kContext);
    std::string why_not;
    const auto log = [this, rank](const std::string& text) {
      const std::lock_guard<std::mutex> lock(mutex);
      lines.push_back(str_of("rank ", rank, ": ", text));
    };
    all[static_cast<size_t>(rank)]->comm =
        make_gpu_ipc(all[static_cast<size_t>(rank)]->queue, control[static_cast<size_t>(rank)],
                     rendezvous, kCapacity, deadline, why_not, log);
  }

  void connect() {
    auto rendezvous = local_rendezvous();
    run_ranks(size(), [&](int rank) {
      connect(rank, *rendezvous, rank + 1, patience());
      CHECK(comm(rank), "not made");
    });
  }

  int size() const { return static_cast<int>(all.size()); }
  std::unique_ptr<Communicator>& comm(int rank) { return all[static_cast<size_t>(rank)]->comm; }
  void leave(const std::vector<int>& ranks) {
    run_ranks(static_cast<int>(ranks.size()), [&](int i) {
      const device::InContext here(Driver::get(), kContext);
      comm(ranks[static_cast<size_t>(i)]).reset();
    });
  }
  // One line each, which begins with the rank and has `why` in it.
  void check_lines(const std::vector<int>& ranks, const std::string& why) {
    CHECK(lines.size() == ranks.size(), lines.size(), " lines: ", lines.empty() ? "" : lines[0]);
    for (int rank : ranks) {
      bool found = false;
      for (const std::string& line : lines) {
        found = found || (line.rfind(str_of("rank ", rank, ": 2 MiB of GPU memory stay"), 0) == 0 &&
                          contains(line, why));
      }
      CHECK(found, "rank ", rank, ", ", why, ": ", lines[0]);
    }
  }

  std::vector<std::unique_ptr<Communicator>> control;
  std::vector<std::unique_ptr<Rank>> all;
  std::mutex mutex;
  std::vector<std::string> lines;
};

// Lets a rank wait, or fail, at one key.
class Detour final : public Rendezvous {
 public:
  Detour(Rendezvous& wrapped, std::string key, std::function<void()> at)
      : wrapped_(wrapped), key_(std::move(key)), at_(std::move(at)) {}
  void set(const std::string& key, const std::string& value) override { wrapped_.set(key, value); }
  std::string get(const std::string& key, const Deadline& deadline) override {
    if (key == key_) at_();
    return wrapped_.get(key, deadline);
  }

 private:
  Rendezvous& wrapped_;
  const std::string key_;
  const std::function<void()> at_;
};

void post_to(Communicator& comm, int peer) {
  std::vector<size_t> bytes_to(static_cast<size_t>(comm.size()));
  std::vector<std::byte*> buffers;
  bytes_to[static_cast<size_t>(peer)] = 100;
  comm.open(bytes_to, buffers, patience());
  comm.post(patience());
}

}  // namespace

TEST(gpu_leave_frees_memory_when_all_have_closed_it) {
  const long long before = own_bytes();
  Ranks ranks(3);
  ranks.connect();
  CHECK(own_bytes() == before + 3 * kBytes, own_bytes() - before, " bytes");
  post_to(*ranks.comm(1), 2);  // never read
  ranks.leave({0, 1, 2});
  ranks.check_lines({}, "");
  CHECK(own_bytes() == before, own_bytes() - before, " bytes are left");
}

TEST(gpu_leave_keeps_memory_that_a_late_peer_has_open) {
  const long long before = own_bytes();
  Ranks ranks(3);
  ranks.connect();
  ranks.leave({0, 1});  // they see each other go, and rank 2 stay
  ranks.check_lines({0, 1}, "rank 2");
  ranks.leave({2});  // the wait that ended without it has broken the group
  ranks.check_lines({0, 1, 2}, "for rank 2");
  CHECK(own_bytes() == before + 3 * kBytes, own_bytes() - before, " bytes are left");
}

TEST(gpu_leave_keeps_memory_of_a_group_that_failed) {
  const long long before = own_bytes();
  Ranks ranks(2);
  ranks.connect();
  ranks.comm(1)->abort({FailureKind::kAborted, "the test says so", -1, {}});
  ranks.leave({0});
  ranks.check_lines({0}, "the test says so");
  ranks.leave({1});
  ranks.check_lines({0, 1}, "the test says so");
  CHECK(own_bytes() == before + 2 * kBytes, own_bytes() - before, " bytes are left");
}

TEST(gpu_leave_takes_no_other_message_for_a_goodbye) {
  const long long before = own_bytes();
  Ranks ranks(2);
  ranks.connect();
  post_to(*ranks.comm(0), 1);
  ranks.leave({1});
  ranks.check_lines({1}, "for rank 0");
  ranks.leave({0});
  CHECK(own_bytes() == before + 2 * kBytes, own_bytes() - before, " bytes are left");
}

TEST(gpu_leave_keeps_memory_while_its_stream_may_use_it) {
  const long long before = own_bytes();
  const int opened = opened_blocks();
  Ranks ranks(2);
  ranks.connect();
  setenv("STUB_DRIVER_FAIL", "cuEventRecord", 1);  // the end of the stream cannot be seen
  ranks.leave({0});
  unsetenv("STUB_DRIVER_FAIL");
  ranks.check_lines({0}, "its stream does not come to its end");
  ranks.leave({1});  // rank 0 has not closed its memory
  ranks.check_lines({0, 1}, "");
  CHECK(opened_blocks() == opened + 1, opened_blocks() - opened, " blocks are open");
  CHECK(own_bytes() == before + 2 * kBytes, own_bytes() - before, " bytes are left");
}

TEST(gpu_leave_of_a_group_that_cannot_be_made_waits_until_all_have_closed) {
  const long long before = own_bytes();
  Ranks ranks(3);
  auto rendezvous = local_rendezvous();
  run_ranks(3, [&](int rank) {
    // Rank 0 opens the memory of both others, which are one process and cannot open each other's.
    Detour late(*rendezvous, "gpu-opened/2", [rank] {
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    std::string why_not;
    const AsProcess own(rank == 0 ? 1 : 2);
    const device::InContext here(Driver::get(), kContext);
    const auto r = static_cast<size_t>(rank);
    auto made = make_gpu_ipc(ranks.all[r]->queue, ranks.control[r], late, kCapacity, patience(),
                             why_not, [&](const std::string& text) {
                               const std::lock_guard<std::mutex> lock(ranks.mutex);
                               ranks.lines.push_back(text);
                             });
    CHECK(!made && contains(why_not, "failed with 201"), why_not);
    CHECK(ranks.control[r], "the caller keeps the control");
  });
  ranks.check_lines({}, "");
  CHECK(own_bytes() == before, own_bytes() - before, " bytes are left");
}

TEST(gpu_leave_keeps_memory_of_a_group_whose_set_up_fails) {
  const long long before = own_bytes();
  Ranks ranks(2);
  auto rendezvous = local_rendezvous();
  run_ranks(2, [&](int rank) {
    Detour broken(*rendezvous, "gpu-opened/0", [rank] {
      if (rank == 1) throw PeerLostError("the store is gone");
    });
    const auto connect = [&] { ranks.connect(rank, broken, rank + 1, patience()); };
    if (rank == 0) return connect();  // does not know yet
    error_of<PeerLostError>(connect);
  });
  ranks.check_lines({1}, "the group was not made");
  ranks.leave({0});
  CHECK(own_bytes() == before + 2 * kBytes, own_bytes() - before, " bytes are left");
}

}  // namespace cgx::native
