#include "comm/mpi/point_to_point.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/arguments.h"
#include "comm/mpi/group.h"
#include "comm/mpi/process.h"
#include "comm/mpi/transfer.h"

namespace cgx {
namespace {

// Fits into the first packet of every network.
using AbortNote = std::array<char, 512>;

/// Waiting for a cancelled receive to end: microseconds, unless its message has just arrived.
constexpr auto kCancelWait = std::chrono::milliseconds(200);

/// A message, for the texts of errors.
struct TransferText {
  bool receiving;
  int rank, peer;
  int world_rank, world_peer;
  int tag;
  size_t bytes;

  std::string text() const {
    return str_of("MPI, rank ", rank, " (", world_rank, " in MPI_COMM_WORLD) ",
                  receiving ? "receiving up to " : "sending ", bytes, " bytes, tag ", tag,
                  receiving ? ", from rank " : ", to rank ", peer, " (", world_peer, ")");
  }
};

constexpr size_t kBulkBytes = 64 << 10;

class MpiPending final : public Pending {
 public:
  MpiPending(MpiProcess& process, std::shared_ptr<MpiTransfer> transfer,
             const TransferText& message)
      : process_(process), transfer_(std::move(transfer)), message_(message) {}

  ~MpiPending() override {
    if (ended() || !transfer_->receiving) return;
    transfer_->cancel.store(true, std::memory_order_relaxed);
    try {
      process_.guarded([&] { process_.progress().cancel_marked(); });
    } catch (const std::exception&) {
      return;  // MPI has ended, or this is a forked child: nothing can be cancelled
    }
    const Deadline deadline = Deadline::after(kCancelWait);
    sleep_until_done(deadline, [] { return false; });
  }

  bool done() override {
    if (!ended()) process_.help();
    return ended();
  }

  void wait(const Deadline& deadline) override {
    MpiChannel& channel = *transfer_->channel;
    sleep_until_done(deadline, [&] { return channel.aborted(); });
    // A message that has come is kept, even if the group has been aborted meanwhile.
    const uint32_t state = transfer_->state.load(std::memory_order_acquire);
    if (state == MpiTransfer::kDone) return;
    if (channel.aborted()) throw AbortedError(str_of(message_.text(), ": ", channel.reason()));
    if (state == MpiTransfer::kFailed) {
      process_.note_failure();
      const Failure& failure = transfer_->failure;
      throw_failure({failure.kind, str_of(message_.text(), ": ", failure.text)});
    }
    process_.note_failure();
    throw TimeoutError(str_of(message_.text(), ": not done after ", deadline.elapsed_text()));
  }

 private:
  bool ended() const {
    return transfer_->state.load(std::memory_order_acquire) != MpiTransfer::kUnderWay;
  }

  template <typename Stop>
  void sleep_until_done(const Deadline& deadline, Stop stop) {
    MpiChannel& channel = *transfer_->channel;
    auto last = MpiProgress::Clock::now();
    for (int round = 0;;) {
      const uint32_t seen = channel.rung();
      if (ended() || stop() || deadline.expired()) return;
      if (process_.help()) {
        round = 0;
        last = MpiProgress::Clock::now();
      } else if (!MpiProgress::stay_awake(round++)) {
        const auto nap = process_.progress().nap_after(MpiProgress::Clock::now() - last);
        channel.sleep(seen, std::min<std::chrono::nanoseconds>(deadline.left(), nap));
      }
    }
  }

  MpiProcess& process_;
  const std::shared_ptr<MpiTransfer> transfer_;
  const TransferText message_;
};

class MpiPointToPoint final : public PointToPoint,
                              public std::enable_shared_from_this<MpiPointToPoint> {
 public:
  MpiPointToPoint(MpiProcess& process, MpiGroup group, int rank, size_t part_bytes)
      : process_(process),
        group_(std::move(group)),
        rank_(rank),
        part_bytes_(part_bytes),
        channel_(std::make_shared<MpiChannel>()) {}

  // Runs on any thread, also on the progress thread: transfers keep this object alive.
  ~MpiPointToPoint() override {
    if (!news_) return;
    news_->cancel.store(true, std::memory_order_relaxed);
    try {
      process_.guarded([&] { process_.progress().cancel_marked(); });
    } catch (const std::exception&) {
      // As in ~MpiPending.
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_.world_ranks.size()); }
  const char* name() const override { return "mpi"; }
  int tags() const override { return kMpiUserTags; }

  std::unique_ptr<Pending> send(int peer, int tag, const std::byte* data, size_t bytes) override {
    return start(peer, tag, const_cast<std::byte*>(data), bytes, false);
  }

  std::unique_ptr<Pending> receive(int peer, int tag, std::byte* data, size_t bytes) override {
    return start(peer, tag, data, bytes, true);
  }

  void abort(const std::string& reason) override {
    if (!channel_->abort(reason)) return;
    process_.note_failure();
    try {
      process_.guarded([&] { process_.progress().cancel_marked(); });
      tell_peers(channel_->reason());
    } catch (const std::exception&) {
      // Peers that cannot be reached find out at their deadline; the caller already has the cause.
    }
  }

  /// Listens for the abort of a peer.
  void listen();

 private:
  std::unique_ptr<Pending> start(int peer, int tag, std::byte* data, size_t bytes, bool receiving);
  void tell_peers(const std::string& reason);
  /// Posts one part. Throws MPI's error.
  uint64_t post(bool receiving, int peer, int tag, void* data, size_t bytes);
  /// Ends the transfer at once if MPI has, hands it to the progress thread otherwise.
  void watch(const std::shared_ptr<MpiTransfer>& transfer, std::vector<uint64_t>& requests);

  MpiProcess& process_;
  const MpiGroup group_;
  const int rank_;
  const size_t part_bytes_;
  const std::shared_ptr<MpiChannel> channel_;
  std::shared_ptr<MpiTransfer> news_;
};

uint64_t MpiPointToPoint::post(bool receiving, int peer, int tag, void* data, size_t bytes) {
  const CgxMpiApi& api = process_.api();
  const int count = static_cast<int>(bytes);
  uint64_t request = 0;
  const int error = receiving ? api.irecv(group_.comm, data, count, peer, tag, &request)
                              : api.isend(group_.comm, data, count, peer, tag, &request);
  if (error != 0) throw Error(process_.describe(error));
  return request;
}

void MpiPointToPoint::watch(const std::shared_ptr<MpiTransfer>& transfer,
                            std::vector<uint64_t>& requests) {
  if (requests.size() == 1) {
    int ended = 0;
    CgxMpiEnd end{};
    const int error = process_.api().test_some(1, requests.data(), &ended, &end);
    if (error == 0 && ended != 0) return process_.progress().end_part(*transfer, end);
  }
  process_.progress().submit(transfer, requests);
}

std::unique_ptr<Pending> MpiPointToPoint::start(int peer, int tag, std::byte* data, size_t bytes,
                                                bool receiving) {
  check_peer(peer, rank_, size());
  if (tag < 0 || tag >= kMpiUserTags) {
    throw ConfigError(str_of("tag is ", tag, ", allowed: 0 to ", kMpiUserTags - 1));
  }
  const TransferText message{
      receiving, rank_, peer, group_.world_ranks[rank_], group_.world_ranks[peer], tag, bytes};
  if (channel_->aborted()) throw AbortedError(str_of(message.text(), ": ", channel_->reason()));
  auto transfer = std::make_shared<MpiTransfer>();
  transfer->channel = channel_;
  transfer->keep = shared_from_this();
  transfer->receiving = receiving;
  transfer->bulk = bytes > kBulkBytes;
  try {
    process_.guarded([&] {
      std::vector<uint64_t> requests;
      try {
        size_t offset = 0;
        do {  // an empty message is one part
          const size_t part = std::min(bytes - offset, part_bytes_);
          requests.push_back(post(receiving, peer, group_.first_tag + tag, data + offset, part));
          offset += part;
        } while (offset < bytes);
      } catch (...) {
        // The parts that were posted keep the memory until they have ended.
        transfer->cancel.store(true, std::memory_order_relaxed);
        transfer->parts = static_cast<int>(requests.size());
        if (!requests.empty()) process_.progress().submit(transfer, requests);
        throw;
      }
      transfer->parts = static_cast<int>(requests.size());
      watch(transfer, requests);
    });
  } catch (const std::exception& error) {
    process_.note_failure();
    Failure failure = failure_of(error);
    throw_failure({failure.kind, str_of(message.text(), ": ", failure.text)});
  }
  return std::make_unique<MpiPending>(process_, std::move(transfer), message);
}

void MpiPointToPoint::listen() {
  auto note = std::make_shared<AbortNote>();
  auto news = std::make_shared<MpiTransfer>();
  news->channel = channel_;
  news->keep = note;
  news->receiving = true;
  news->background = true;
  news->parts = 1;
  news->then = [&process = process_, channel = channel_.get(), note = note.get()] {
    note->back() = '\0';
    if (channel->abort(note->data())) process.progress().cancel_marked();
    process.note_failure();
  };
  process_.guarded([&] {
    const uint64_t request =
        post(true, CGX_MPI_ANY_PEER, group_.first_tag + kMpiAbortTag, note->data(), note->size());
    process_.progress().submit(news, {request});
  });
  news_ = std::move(news);
}

void MpiPointToPoint::tell_peers(const std::string& reason) {
  auto note = std::make_shared<AbortNote>();
  const std::string text = str_of("aborted by rank ", rank_, ": ", reason);
  std::strncpy(note->data(), text.c_str(), note->size() - 1);
  note->back() = '\0';
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    process_.guarded([&] {
      auto transfer = std::make_shared<MpiTransfer>();
      transfer->channel = channel_;
      transfer->keep = note;
      transfer->parts = 1;
      std::vector<uint64_t> requests = {
          post(false, peer, group_.first_tag + kMpiAbortTag, note->data(), note->size())};
      watch(transfer, requests);
    });
  }
}

}  // namespace

std::shared_ptr<PointToPoint> make_mpi_point_to_point(const CgxMpiApi* api, Rendezvous& rendezvous,
                                                      int rank, int size, const Deadline& deadline,
                                                      const MpiOptions& options) {
  check_rank(rank, size);
  if (options.part_bytes < 1 || options.part_bytes > INT_MAX) {
    throw ConfigError(
        str_of("part_bytes of MPI is ", options.part_bytes, ", allowed: 1 to ", INT_MAX));
  }
  MpiProcess* process = nullptr;
  try {
    process = &MpiProcess::of(api);
    process->start(deadline);
  } catch (const std::exception& error) {
    refuse_to_meet_over_mpi(rendezvous, rank, error.what());
    throw;
  }
  MpiGroup group = meet_over_mpi(*process, rendezvous, rank, size, options.part_bytes, deadline);
  auto made =
      std::make_shared<MpiPointToPoint>(*process, std::move(group), rank, options.part_bytes);
  made->listen();
  return made;
}

std::shared_ptr<PointToPoint> mpi_point_to_point_from(const void* api_table, Rendezvous& rendezvous,
                                                      int rank, int size,
                                                      const Deadline& deadline) {
  return make_mpi_point_to_point(static_cast<const CgxMpiApi*>(api_table), rendezvous, rank, size,
                                 deadline);
}

}  // namespace cgx
