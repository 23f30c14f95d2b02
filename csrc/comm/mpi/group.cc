#include "comm/mpi/group.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/process_token.h"

namespace cgx {
namespace {

constexpr size_t kMostKept = 8;  // communicators of the same ranks

/// A communicator that its members may use again.
struct Kept {
  std::string name;  // the same on all members
  uint64_t comm = 0;
  int uses = 0;  // groups that had tags of it
};

/// By process (tests have several in one) and members.
struct Cache {
  std::mutex mutex;
  std::map<std::pair<MpiProcess*, std::vector<int>>, std::vector<Kept>> kept;
  uint64_t drawn = 0;
};

Cache& cache() {
  static auto* value = new Cache;
  return *value;
}

/// Data that a rank sends to the others.
struct Record {
  std::string refusal;
  int world_rank = 0;
  int world_size = 0;
  std::string library;
  std::string job;
  size_t part_bytes = 0;
  std::string name;  // of a communicator yet to be made; the name on rank 0 counts

  std::string pack() const {
    return str_of(refusal, '\n', world_rank, '\n', world_size, '\n', library, '\n', job, '\n',
                  part_bytes, '\n', name);
  }
  static Record unpack(const std::string& text) {
    Record record;
    std::istringstream lines(text);
    std::string line;
    auto next = [&] {
      line.clear();
      std::getline(lines, line);
      return line;
    };
    auto number = [&] { return std::strtoull(next().c_str(), nullptr, 10); };
    record.refusal = next();
    record.world_rank = static_cast<int>(number());
    record.world_size = static_cast<int>(number());
    record.library = next();
    record.job = next();
    record.part_bytes = number();
    record.name = next();
    return record;
  }
};

std::string record_key(int rank) { return str_of("mpi/rank/", rank); }
std::string kept_key(int rank) { return str_of("mpi/kept/", rank); }

/// "ranks 0, 2: 4; rank 1: 8"
template <typename Get>
std::string by_value(const std::vector<Record>& records, Get get) {
  std::map<std::string, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    ranks_of[str_of(get(records[rank]))].push_back(rank);
  }
  std::string text;
  for (const auto& [value, ranks] : ranks_of) {
    text += str_of(text.empty() ? "" : "; ", ranks.size() == 1 ? "rank" : "ranks");
    for (size_t i = 0; i < ranks.size(); ++i) text += str_of(i == 0 ? " " : ", ", ranks[i]);
    text += ": " + (value.empty() ? "(none)" : value);
  }
  return text;
}

constexpr char kHowToStart[] =
    "start all ranks by one `mpirun -np N python ...` or `srun --mpi=pmix ...` of this MPI library "
    "(torchrun starts processes that have nothing to do with each other for MPI)";

void check_records(const std::vector<Record>& records, int rank) {
  const int size = static_cast<int>(records.size());
  const std::string who = str_of("MPI, rank ", rank, " of ", size, ": ");
  for (int peer = 0; peer < size; ++peer) {
    if (!records[peer].refusal.empty()) {
      throw MismatchError(
          str_of(who, "rank ", peer, " cannot take part in the group: ", records[peer].refusal));
    }
  }
  auto differ = [&](auto get) {
    return std::any_of(records.begin(), records.end(),
                       [&](const Record& other) { return get(other) != get(records[0]); });
  };
  auto library = [](const Record& record) { return record.library; };
  auto world_size = [](const Record& record) { return record.world_size; };
  auto job = [](const Record& record) { return record.job; };
  auto part_bytes = [](const Record& record) { return record.part_bytes; };
  if (differ(library)) {
    throw ConfigError(str_of(who, "the ranks have different MPI libraries: ",
                             by_value(records, library), "; allowed: the same everywhere"));
  }
  std::set<int> world_ranks;
  for (const Record& record : records) world_ranks.insert(record.world_rank);
  if (static_cast<int>(world_ranks.size()) < size || differ(world_size) || differ(job)) {
    const std::string jobs =
        differ(job) ? str_of("; names of the jobs: ", by_value(records, job)) : "";
    throw ConfigError(str_of(
        who,
        "the ranks are not different processes of one MPI job. Sizes of their MPI_COMM_WORLD: ",
        by_value(records, world_size), "; their ranks in it: ",
        by_value(records, [](const Record& record) { return record.world_rank; }), jobs, ". ",
        kHowToStart));
  }
  if (differ(part_bytes)) {
    throw MismatchError(
        str_of(who, "the ranks split messages differently: ", by_value(records, part_bytes)));
  }
}

std::string draw_name() {
  Cache& all = cache();
  std::lock_guard lock(all.mutex);
  std::ostringstream text;
  text << std::hex << process_token() << '-' << ++all.drawn;
  return text.str();
}

// A tag from the name keeps concurrent creations by several threads apart (MPI 4.1, 7.4.2).
int creation_tag(const std::string& name, int largest_tag) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<int>((hash ^ (hash >> 32)) % (static_cast<uint64_t>(largest_tag) + 1));
}

/// Takes the next tags of every kept communicator, which no other group of this process gets then.
/// `uses` of the result is the number of the tags. The cache may forget a communicator while its
/// ranks agree on it, on one of them earlier than on another: each looks it up in its own result.
std::vector<Kept> reserve(const std::pair<MpiProcess*, std::vector<int>>& key,
                          int groups_per_comm) {
  Cache& all = cache();
  std::lock_guard lock(all.mutex);
  std::vector<Kept>& kept = all.kept[key];
  std::erase_if(kept, [&](const Kept& one) { return one.uses >= groups_per_comm; });
  const std::vector<Kept> reserved = kept;
  for (Kept& one : kept) ++one.uses;
  return reserved;
}

/// A line for each.
std::string line_of(const Kept& one) { return str_of(one.name, ' ', one.uses); }
std::string lines_of(const std::vector<Kept>& all) {
  std::string text;
  for (const Kept& one : all) text += line_of(one) + '\n';
  return text;
}

/// The first line of rank 0 that all have: threads that make groups of the same ranks at once may
/// have reserved in different order on different ranks. Empty if there is none.
std::string common_line(const std::vector<std::string>& reserved) {
  std::istringstream lines(reserved[0]);
  for (std::string line; std::getline(lines, line);) {
    const bool everywhere =
        std::all_of(reserved.begin(), reserved.end(), [&](const std::string& other) {
          return ("\n" + other).find("\n" + line + "\n") != std::string::npos;
        });
    if (everywhere) return line;
  }
  return "";
}

}  // namespace

void refuse_to_meet_over_mpi(Rendezvous& rendezvous, int rank, const std::string& why) {
  Record record;
  record.refusal = why;
  std::replace(record.refusal.begin(), record.refusal.end(), '\n', ' ');
  rendezvous.set(record_key(rank), record.pack());
}

MpiGroup meet_over_mpi(MpiProcess& process, Rendezvous& rendezvous, int rank, int size,
                       size_t part_bytes, const Deadline& deadline) {
  const MpiProcess::World& world = process.world();
  const Record mine{"", world.rank, world.size, world.library, world.job, part_bytes, draw_name()};
  rendezvous.set(record_key(rank), mine.pack());
  std::vector<Record> records;
  for (int peer = 0; peer < size; ++peer) {
    records.push_back(peer == rank ? mine
                                   : Record::unpack(rendezvous.get(record_key(peer), deadline)));
  }
  check_records(records, rank);

  MpiGroup group;
  for (const Record& record : records) group.world_ranks.push_back(record.world_rank);
  const std::pair<MpiProcess*, std::vector<int>> key{&process, group.world_ranks};
  const int groups_per_comm = (world.largest_tag - kMpiTagsPerGroup + 1) / kMpiTagsPerGroup + 1;

  const std::vector<Kept> own = reserve(key, groups_per_comm);
  std::vector<std::string> reserved(size);
  reserved[rank] = lines_of(own);
  rendezvous.set(kept_key(rank), reserved[rank]);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) reserved[peer] = rendezvous.get(kept_key(peer), deadline);
  }
  const std::string line = common_line(reserved);
  for (const Kept& one : own) {
    if (line_of(one) != line) continue;
    group.comm = one.comm;
    group.first_tag = one.uses * kMpiTagsPerGroup;
    return group;
  }
  const std::string& name = records[0].name;
  group.comm =
      process.create_group(group.world_ranks, creation_tag(name, world.largest_tag), deadline);
  Cache& all = cache();
  std::lock_guard lock(all.mutex);
  std::vector<Kept>& kept = all.kept[key];
  if (kept.size() >= kMostKept) kept.erase(kept.begin());
  kept.push_back({name, group.comm, 1});
  return group;
}

}  // namespace cgx
