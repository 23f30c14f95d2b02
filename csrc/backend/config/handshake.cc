#include "backend/config/handshake.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <thread>

#include "backend/version.h"
#include "base/error.h"
#include "codec/config.h"
#include "reduce/plan/header.h"

namespace cgx {
namespace {

// Entries of each rank that are not compared.
constexpr char kHostKey[] = "host", kInvitationKey[] = "invitation";
constexpr char kAddressesKey[] = "addresses";
constexpr std::string_view kMade = "made:", kFailed = "failed:";
constexpr char kRefusedKey[] = "refused";
// The other ranks are already waiting for the cause: they read it within milliseconds.
constexpr std::chrono::seconds kLeaving{3};
// The last of the others may still be reading what this rank has read.
constexpr std::chrono::milliseconds kLastReader{30};

std::string rank_key(int rank) { return str_of("handshake/", rank); }

// The values that all ranks have set under key_of(rank), by rank; `mine` for this one.
template <typename KeyOf>
std::vector<std::string> exchange(Rendezvous& rendezvous, int rank, int size, const KeyOf& key_of,
                                  const std::string& mine, const Deadline& deadline) {
  rendezvous.set(key_of(rank), mine);
  std::vector<std::string> keys;
  for (int p = 0; p < size; ++p) {
    if (p != rank) keys.push_back(key_of(p));
  }
  std::vector<std::string> values = rendezvous.get_all(keys, deadline);
  values.insert(values.begin() + rank, mine);
  return values;
}

// One "name=value" line each; values hold no newline (only host_id is free text).
std::string pack(const std::map<std::string, std::string>& values) {
  std::string text;
  for (const auto& [name, value] : values) text += name + "=" + value + "\n";
  return text;
}

std::map<std::string, std::string> unpack(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return values;
}

// "1:maxmin(bits,bucket_size,rounding,...) 2:half(bits,format) ...": what a configuration's hash and
// the header's family mean.
std::string families_text() {
  std::string text;
  for (const Family* family : families()) {
    text += str_of(text.empty() ? "" : " ", int{family->id}, ":", family->name, "(");
    for (const Parameter& p : family->parameters) {
      text += (&p == family->parameters.data() ? "" : ",") + p.name;
    }
    text += ")";
  }
  return text;
}

// "rank 0, 2: 4; rank 1: 8"
std::string by_value(const std::map<std::string, std::vector<int>>& ranks_of) {
  std::string text;
  for (const auto& [value, ranks] : ranks_of) {
    text += text.empty() ? "rank" : "; rank";
    for (size_t i = 0; i < ranks.size(); ++i) {
      text += str_of(i == 0 ? " " : ", ", ranks[i]);
    }
    text += ": '" + value + "'";
  }
  return text;
}

}  // namespace

std::string host_identity(const std::string& host_id) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat shm = {};
  const bool has_shm = stat("/dev/shm", &shm) == 0;
  std::string id = str_of(boot, ":", has_shm ? shm.st_dev : 0, ":", has_shm ? shm.st_ino : 0);
  for (char c : host_id) id += c == '\n' ? ' ' : c;
  return id;
}

void refuse_handshake(Rendezvous& rendezvous, int rank, const std::string& why) {
  std::string line = why;
  std::replace(line.begin(), line.end(), '\n', ' ');
  rendezvous.set(rank_key(rank), pack({{kRefusedKey, line}}));
}

Peers handshake(Rendezvous& rendezvous, int rank, int size, const OptionFields& options,
                const std::string& host_id, const std::string& invitation,
                const std::string& addresses, const Deadline& deadline) {
  std::map<std::string, std::string> mine = compared_settings(options);
  mine["torch_cgx version"] = kVersion;
  mine["wire format"] = std::to_string(MessageHeader::kVersion);
  mine["codec families"] = families_text();
  mine[kHostKey] = host_identity(host_id);
  mine[kInvitationKey] = invitation;
  mine[kAddressesKey] = addresses;
  const std::vector<std::string> of_rank =
      exchange(rendezvous, rank, size, rank_key, pack(mine), deadline);

  Peers peers;
  // Setting -> value -> ranks.
  std::map<std::string, std::map<std::string, std::vector<int>>> ranks_of;
  for (int p = 0; p < size; ++p) {
    auto theirs = p == rank ? mine : unpack(of_rank[static_cast<size_t>(p)]);
    if (theirs.count(kRefusedKey)) {
      throw MismatchError(str_of("rank ", rank, " of ", size, ": rank ", p,
                                 " cannot take part in the group: ", theirs[kRefusedKey]));
    }
    for (const auto& [name, value] : mine) theirs.try_emplace(name, "(missing)");
    peers.hosts.push_back(theirs[kHostKey]);
    if (p == 0) peers.invitation = theirs[kInvitationKey];
    if (!theirs[kAddressesKey].empty()) peers.addresses.push_back(theirs[kAddressesKey]);
    for (const char* key : {kHostKey, kInvitationKey, kAddressesKey}) theirs.erase(key);
    for (const auto& [name, value] : theirs) ranks_of[name][value].push_back(p);
  }
  if (peers.addresses.size() != peers.hosts.size()) peers.addresses.clear();
  std::string differences;
  for (const auto& [name, values] : ranks_of) {
    if (values.size() > 1) differences += "\n  " + name + ": " + by_value(values);
  }
  if (!differences.empty()) {
    throw MismatchError(str_of("rank ", rank, " of ", size,
                               ": the ranks of this group disagree on their configuration",
                               " (torch_cgx.Options or CGX_* variables):", differences));
  }
  return peers;
}

std::vector<std::string> confirm(Rendezvous& rendezvous, const std::string& part, int rank,
                                 int size, const std::string& failure, const Deadline& deadline,
                                 const std::string& word) {
  const auto key = [&part](int of) { return str_of("made/", part, "/", of); };
  if (!failure.empty()) {  // which this rank reports
    rendezvous.set(key(rank), str_of(kFailed, failure));
    return {};
  }
  auto words = exchange(rendezvous, rank, size, key, str_of(kMade, word), deadline);
  for (int p = 0; p < size; ++p) {
    std::string& theirs = words[static_cast<size_t>(p)];
    if (theirs.starts_with(kFailed)) {
      throw MismatchError(
          str_of("rank ", rank, " of ", size, ": rank ", p,
                 " cannot take part in the group: ", theirs.substr(kFailed.size())));
    }
    theirs.erase(0, kMade.size());
  }
  return words;
}

void leave_together(Rendezvous& rendezvous, int rank, int size) noexcept {
  try {
    const auto key = [](int of) { return str_of("left/", of); };
    exchange(rendezvous, rank, size, key, "left", Deadline::after(kLeaving));
    std::this_thread::sleep_for(kLastReader);
  } catch (...) {
    // A rank never came, or the process that serves the store has ended. This rank reports the
    // cause that it has.
  }
}

}  // namespace cgx
