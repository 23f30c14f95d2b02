// An MPI of up to four ranks in one process, for the tests of the MPI communicator: a table of
// functions for each rank, and knobs that make it misbehave. Built by the tests as a library of its
// own.
//
// As real libraries do, it sends small messages at once, keeps long ones until the receive is
// posted, and moves messages only inside calls. Thread-safe.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/mpi/api.h"

namespace {

constexpr int kRanks = 4;
constexpr int kTruncated = 15;  // codes of errors; others have no kind
constexpr int kPeerLost = 75;
constexpr size_t kEager = 4096;

struct Request {
  bool receiving = false;
  int owner = 0;
  int peer = 0;
  int tag = 0;
  uint64_t comm = 0;
  char* data = nullptr;
  size_t bytes = 0;
  std::vector<char> copy;  // of a small message, whose send has ended at once
  bool ended = false;
  CgxMpiEnd end{};
};

using RequestPtr = std::shared_ptr<Request>;

// Everything a test looks at or changes. Requests of earlier tests go on in their own world.
struct MockWorld {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<std::string, int>, long> numbers;  // knobs and counters, by rank
  std::deque<RequestPtr> sends;
  std::deque<RequestPtr> receives;
  std::map<std::pair<std::vector<int>, int>, std::pair<int, uint64_t>> meetings;
  CgxMpiHook finalize_hook[kRanks] = {};
  void* finalize_context[kRanks] = {};
  uint64_t next_comm = 1;
  std::map<uint64_t, std::vector<int>> members;

  // With the mutex held.
  long& number(const char* name, int rank) { return numbers[{name, rank}]; }
  // Counts down; true when it reaches 0, and from then on. Unset: never.
  bool due(const char* name, int rank) {
    auto found = numbers.find({name, rank});
    if (found == numbers.end()) return false;
    return found->second <= 0 || --found->second < 0;
  }
};

MockWorld* world = nullptr;
// Requests that have not been seen to end, with the world they belong to. Never destroyed, as the
// threads that test them live as long as the process.
auto& live = *new std::map<uint64_t, std::pair<MockWorld*, RequestPtr>>;
auto& live_mutex = *new std::mutex;
uint64_t next_request = 1;

void finish(Request& request, int error, int bytes, int cancelled = 0) {
  request.ended = true;
  request.end = {0, error, cancelled, bytes};
}

bool fits(const Request& send, const Request& receive) {
  return send.comm == receive.comm && send.tag == receive.tag && send.peer == receive.owner &&
         (receive.peer == CGX_MPI_ANY_PEER || receive.peer == send.owner);
}

// Hands over every message whose receive is posted.
void match(MockWorld& w) {
  for (auto receive = w.receives.begin(); receive != w.receives.end();) {
    auto send = w.sends.begin();
    while (send != w.sends.end() && !fits(**send, **receive)) ++send;
    if (send == w.sends.end()) {
      ++receive;
      continue;
    }
    Request& from = **send;
    Request& to = **receive;
    if (from.bytes > to.bytes) {
      ++w.number("truncated", to.owner);
      finish(to, kTruncated, 0);
    } else if (w.due("lose_after", to.owner)) {
      finish(to, kPeerLost, 0);
    } else {
      std::memcpy(to.data, from.copy.empty() ? from.data : from.copy.data(), from.bytes);
      finish(to, 0, static_cast<int>(from.bytes));
    }
    if (!from.ended) finish(from, 0, 0);
    w.sends.erase(send);
    receive = w.receives.erase(receive);
  }
}

uint64_t start(MockWorld& w, RequestPtr request) {
  (request->receiving ? w.receives : w.sends).push_back(request);
  std::lock_guard lock(live_mutex);
  live[next_request] = {&w, std::move(request)};
  return next_request++;
}

std::pair<MockWorld*, RequestPtr> find(uint64_t request) {
  std::lock_guard lock(live_mutex);
  return live.at(request);
}

int test_some(int count, uint64_t* requests, int* ended, CgxMpiEnd* ends) {
  *ended = 0;
  for (int i = 0; i < count; ++i) {
    auto [w, request] = find(requests[i]);
    std::lock_guard lock(w->mutex);
    if (w->number("test_error", request->owner) != 0) {
      return static_cast<int>(w->number("test_error", request->owner));
    }
    match(*w);
    if (!request->ended) continue;
    ends[*ended] = request->end;
    ends[(*ended)++].index = i;
    std::lock_guard live_lock(live_mutex);
    live.erase(requests[i]);
  }
  return 0;
}

int cancel(uint64_t* handle) {
  auto [w, request] = find(*handle);
  std::lock_guard lock(w->mutex);
  ++w->number("cancels", request->owner);
  if (w->number("stubborn", request->owner) != 0) return 0;
  for (auto it = w->receives.begin(); it != w->receives.end(); ++it) {
    if (*it != request) continue;
    w->receives.erase(it);
    finish(*request, 0, 0, 1);
    break;
  }
  return 0;
}

int error_kind(int error) {
  if (error == kTruncated) return CGX_MPI_TRUNCATED;
  return error == kPeerLost ? CGX_MPI_PEER_LOST : CGX_MPI_OTHER_ERROR;
}

void error_text(int error, char* text, int capacity) {
  const std::string full = "mock: this is error " + std::to_string(error);
  std::strncpy(text, full.c_str(), capacity - 1);
  text[capacity - 1] = '\0';
}

template <int kRank>
struct Rank {
  static int state(int* initialized, int* finalized) {
    std::lock_guard lock(world->mutex);
    *initialized = world->number("initialized", kRank) != 0;
    *finalized = world->number("finalized", kRank) != 0;
    return 0;
  }
  static int init(int* level) {
    MockWorld& w = *world;
    std::unique_lock lock(w.mutex);
    ++w.number("inits", kRank);
    w.changed.wait(lock, [&] { return w.number("hold_init", kRank) == 0; });
    w.number("initialized", kRank) = 1;
    *level = static_cast<int>(w.number("level", kRank));
    return static_cast<int>(w.number("init_error", kRank));
  }
  static int thread_level(int* level) {
    std::lock_guard lock(world->mutex);
    *level = static_cast<int>(world->number("level", kRank));
    return 0;
  }
  static int where(int* rank, int* size, int* largest_tag) {
    std::lock_guard lock(world->mutex);
    *rank = static_cast<int>(world->number("world_rank", kRank));
    *size = static_cast<int>(world->number("world_size", kRank));
    *largest_tag = static_cast<int>(world->number("largest_tag", kRank));
    return 0;
  }
  static int library_version(char* text, int capacity) {
    std::lock_guard lock(world->mutex);
    const std::string full = "Mock MPI " + std::to_string(world->number("library", kRank));
    std::strncpy(text, full.c_str(), capacity - 1);
    text[capacity - 1] = '\0';
    return 0;
  }
  static int finalize() {
    MockWorld& w = *world;
    CgxMpiHook hook = nullptr;
    void* context = nullptr;
    {
      std::lock_guard lock(w.mutex);
      ++w.number("finalizes", kRank);
      hook = w.finalize_hook[kRank];
      context = w.finalize_context[kRank];
    }
    if (hook != nullptr) hook(context);
    std::lock_guard lock(w.mutex);
    w.number("finalized", kRank) = 1;
    return 0;
  }
  static int on_finalize(CgxMpiHook hook, void* context) {
    std::lock_guard lock(world->mutex);
    world->finalize_hook[kRank] = hook;
    world->finalize_context[kRank] = context;
    return 0;
  }
  // Tests of what happens at exit run real processes.
  static void at_exit(CgxMpiHook, void*) {}
  static int exit_in_error() { return 0; }

  static int create_group(const int* world_ranks, int count, int tag, uint64_t* comm) {
    MockWorld& w = *world;
    const std::vector<int> members(world_ranks, world_ranks + count);
    std::unique_lock lock(w.mutex);
    ++w.number("creates", kRank);
    if (w.number("create_error", kRank) != 0) {
      return static_cast<int>(w.number("create_error", kRank));
    }
    auto& [arrived, made] = w.meetings[{members, tag}];
    if (arrived++ % count == 0) made = w.next_comm++;
    const int round = (arrived - 1) / count;
    *comm = made;
    w.members[made] = members;
    w.changed.notify_all();
    auto everybody = [&, &arrived = arrived] { return arrived >= (round + 1) * count; };
    w.changed.wait(lock, [&] { return everybody() && w.number("hold_create", kRank) == 0; });
    return 0;
  }
  static int post(uint64_t comm, char* data, int bytes, int peer, int tag, bool receiving,
                  uint64_t* request) {
    MockWorld& w = *world;
    std::lock_guard lock(w.mutex);
    const char* name = receiving ? "irecvs" : "isends";
    ++w.number(name, kRank);
    if (w.number("finalized", kRank) != 0) ++w.number("misused", kRank);
    if (w.due(receiving ? "fail_irecv_after" : "fail_isend_after", kRank)) return kPeerLost;
    const std::vector<int>& members = w.members.at(comm);
    auto made = std::make_shared<Request>();
    made->receiving = receiving;
    made->owner = kRank;
    made->peer = peer;
    for (size_t i = 0; i < members.size(); ++i) {
      // Peers count in the group, everything else here in the world.
      if (static_cast<int>(i) == peer) made->peer = members[i];
    }
    made->tag = tag;
    made->comm = comm;
    made->data = data;
    made->bytes = bytes;
    if (!receiving && made->bytes <= kEager) {
      made->copy.assign(data, data + bytes);
      finish(*made, 0, 0);
    }
    long& longest = w.number("longest_part", kRank);
    if (bytes > longest) longest = bytes;
    *request = start(w, std::move(made));
    return 0;
  }
  static int isend(uint64_t comm, const void* data, int bytes, int peer, int tag,
                   uint64_t* request) {
    return post(comm, const_cast<char*>(static_cast<const char*>(data)), bytes, peer, tag, false,
                request);
  }
  static int irecv(uint64_t comm, void* data, int bytes, int peer, int tag, uint64_t* request) {
    return post(comm, static_cast<char*>(data), bytes, peer, tag, true, request);
  }

  static CgxMpiApi* table() {
    return new CgxMpiApi{CGX_MPI_API_VERSION,
                         sizeof(CgxMpiApi),
                         "mock",
                         state,
                         init,
                         thread_level,
                         where,
                         library_version,
                         finalize,
                         on_finalize,
                         at_exit,
                         exit_in_error,
                         create_group,
                         isend,
                         irecv,
                         test_some,
                         cancel,
                         error_kind,
                         error_text};
  }
};

}  // namespace

extern "C" {

/// Starts a world of four ranks, not yet initialised. Earlier worlds stay alive for their
/// transfers.
__attribute__((visibility("default"))) void mock_reset() {
  auto* fresh = new MockWorld;
  for (int rank = 0; rank < kRanks; ++rank) {
    fresh->number("level", rank) = CGX_MPI_MULTIPLE;
    fresh->number("world_rank", rank) = rank;
    fresh->number("world_size", rank) = kRanks;
    fresh->number("largest_tag", rank) = 32767;
  }
  world = fresh;
}

/// The functions as a rank calls them: a new table at each call, as in a fresh process.
__attribute__((visibility("default"))) CgxMpiApi* mock_table(int rank) {
  CgxMpiApi* (*const tables[kRanks])() = {Rank<0>::table, Rank<1>::table, Rank<2>::table,
                                          Rank<3>::table};
  return tables[rank]();
}

__attribute__((visibility("default"))) void mock_set(const char* name, int rank, long value) {
  std::lock_guard lock(world->mutex);
  world->number(name, rank) = value;
  world->changed.notify_all();
}

__attribute__((visibility("default"))) long mock_get(const char* name, int rank) {
  std::lock_guard lock(world->mutex);
  return world->number(name, rank);
}

/// Requests of a rank of this world that have not been seen to end.
__attribute__((visibility("default"))) int mock_live(int rank) {
  std::lock_guard lock(live_mutex);
  int count = 0;
  for (const auto& [number, entry] : live) {
    count += entry.first == world && entry.second->owner == rank ? 1 : 0;
  }
  return count;
}

/// Finalises MPI as another part of the program would.
__attribute__((visibility("default"))) void mock_finalize(int rank) {
  int (*const functions[kRanks])() = {Rank<0>::finalize, Rank<1>::finalize, Rank<2>::finalize,
                                      Rank<3>::finalize};
  functions[rank]();
}

}  // extern "C"
