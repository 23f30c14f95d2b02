// Shared memory between processes: forked ranks, and what is left when one is killed.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "check.h"
#include "comm/shm/area.h"
#include "comm/shm/communicator.h"
#include "groups.h"
#include "machinery/stress.h"

namespace cgx::native {
namespace {

// Keys and values in memory that forked processes share. Written once each.
class SharedRendezvous final : public Rendezvous {
 public:
  SharedRendezvous() {
    void* memory = mmap(nullptr, sizeof(Entry) * kEntries, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    entries_ = static_cast<Entry*>(memory);
    for (int i = 0; i < kEntries; ++i) new (&entries_[i]) Entry{};
  }
  ~SharedRendezvous() override { munmap(entries_, sizeof(Entry) * kEntries); }

  void set(const std::string& key, const std::string& value) override {
    for (int i = 0; i < kEntries; ++i) {
      uint32_t free = 0;
      if (!entries_[i].state.compare_exchange_strong(free, 1)) continue;
      std::snprintf(entries_[i].key, sizeof entries_[i].key, "%s", key.c_str());
      std::snprintf(entries_[i].value, sizeof entries_[i].value, "%s", value.c_str());
      entries_[i].state = 2;
      return;
    }
    throw Error("no room for another key");
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    while (!deadline.expired()) {
      for (int i = 0; i < kEntries; ++i) {
        if (entries_[i].state == 2 && key == entries_[i].key) return entries_[i].value;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw TimeoutError(str_of("key ", key, " did not come"));
  }

 private:
  static constexpr int kEntries = 32;
  struct Entry {
    std::atomic<uint32_t> state{0};
    char key[60] = {};
    char value[960] = {};
  };
  Entry* entries_;
};

// A rank in a child of its own. Its exit status is 0 if `body` did not throw.
pid_t fork_rank(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child > 0) return child;
  int status = 1;
  try {
    body();
    status = 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  std::fflush(nullptr);
  _exit(status);
}

int status_of(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

// Areas that this process made and whose name is still there.
int areas_left(pid_t pid) {
  const std::string prefix = str_of("cgx-", pid, "-");
  int left = 0;
  DIR* folder = opendir("/dev/shm");
  CHECK(folder != nullptr);
  while (const dirent* entry = readdir(folder))
    left += std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0;
  closedir(folder);
  return left;
}

}  // namespace

TEST(process_random_messages) {
  for (int size : {2, 4}) {
    SharedRendezvous rendezvous;
    StressTask task;
    task.exchanges = 150;
    task.max_bytes = 20000;
    task.timeout_seconds = 120;
    auto rank = [&](int number) {
      auto comm = make_shm_communicator(rendezvous, number, size, 50000, patience());
      CHECK(stress_rank(*comm, task) > 0);
    };
    std::vector<pid_t> children;
    for (int number = 1; number < size; ++number) {
      children.push_back(fork_rank([&, number] { rank(number); }));
    }
    rank(0);
    for (pid_t child : children) CHECK(status_of(child) == 0);
    CHECK(areas_left(getpid()) == 0);
  }
}

TEST(process_killed_peer_is_noticed) {
  // Before its first message, and in the middle of the exchange.
  for (int exchanges : {0, 20}) {
    SharedRendezvous rendezvous;
    auto exchange = [](Communicator& comm) {
      std::memset(comm.open_broadcast(100, patience()), 1, 100);
      comm.post(patience());
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        CHECK(comm.receive(peer, patience()).bytes == 100);
        comm.release(peer);
      }
    };
    const pid_t victim = fork_rank([&] {
      auto comm = make_shm_communicator(rendezvous, 2, 3, 1000, patience());
      for (int i = 0; i < exchanges; ++i) exchange(*comm);
      raise(SIGKILL);
    });
    const pid_t other = fork_rank([&] {
      auto comm = make_shm_communicator(rendezvous, 1, 3, 1000, patience());
      error_of<PeerLostError>([&] {
        for (;;) exchange(*comm);
      });
    });
    auto comm = make_shm_communicator(rendezvous, 0, 3, 1000, patience());
    const auto start = std::chrono::steady_clock::now();
    const std::string text = error_of<PeerLostError>([&] {
      for (;;) exchange(*comm);
    });
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    CHECK(contains(text, "rank 2"), text);
    CHECK(WIFSIGNALED(status_of(victim)));
    CHECK(status_of(other) == 0);
    CHECK(areas_left(getpid()) == 0);
  }
}

TEST(process_forked_child_cannot_speak_for_its_parent) {
  Group group = make_group(CommunicatorKind::kShm, 2, 1000);
  const pid_t child = fork_rank([&] {
    CHECK(contains(error_of<ConfigError>([&] { group.ranks[0]->open_broadcast(1, patience()); }),
                   "parent process"));
    group.ranks[0]->abort({FailureKind::kAborted, "must not reach the parent"});
    group.ranks.clear();
  });
  CHECK(status_of(child) == 0);
  StressTask task;
  task.exchanges = 20;
  task.max_bytes = 400;
  CHECK(stress_group(group.pointers(), task) > 0);
}

TEST(process_set_up_fails_on_all_ranks) {
  // Other sizes of slots.
  auto rendezvous = local_rendezvous();
  run_ranks(3, [&](int rank) {
    const std::string text = error_of<MismatchError>(
        [&] { make_shm_communicator(*rendezvous, rank, 3, rank == 2 ? 2000 : 1000, soon(20000)); });
    CHECK(contains(text, "CGX_SHM_SEGMENT_KB"), text);
  });
  CHECK(areas_left(getpid()) == 0);
  // A rank that does not come is named.
  auto lonely = local_rendezvous();
  CHECK(contains(
      error_of<TimeoutError>([&] { make_shm_communicator(*lonely, 0, 2, 1000, soon(200)); }),
      "rank 1"));
  CHECK(areas_left(getpid()) == 0);
  // More than any /dev/shm has.
  error_of<ResourceError>([] { ShmArea::create(size_t{1} << 50); });
  CHECK(areas_left(getpid()) == 0);
  for (const char* name : {"", "/", "/etc", "cgx-1", "/cgx-/../x", "/cgx-none"}) {
    error_of<Error>([&] { ShmArea::open(name); });
  }
}

}  // namespace cgx::native
