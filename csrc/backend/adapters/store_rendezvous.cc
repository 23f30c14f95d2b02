#include "backend/adapters/store_rendezvous.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/gloo/error_text.h"

namespace cgx {
namespace {

class StoreRendezvous : public Rendezvous {
 public:
  StoreRendezvous(StorePtr store, std::function<void()> look)
      : store_(std::move(store)), look_(std::move(look)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set("cgx/" + key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  std::string get(const std::string& key, const Deadline& deadline) override {
    return get_all({key}, deadline).front();
  }

  // One or two questions to the store, however many the keys: each costs the way to its server
  // and back.
  std::vector<std::string> get_all(const std::vector<std::string>& keys,
                                   const Deadline& deadline) override {
    if (keys.empty()) return {};
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back("cgx/" + key);
    if (!look_) {
      if (auto values = ask(full, deadline)) return *values;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
    try {
      if (!look_) store_->wait(full, std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& e) {
      // The wait was in whole milliseconds. If it ended earlier, the store's server has ended.
      const bool late = deadline.left() < std::chrono::milliseconds(5);
      const std::string text =
          str_of("waited ", deadline.elapsed_text(), " for '", late ? missing(keys) : keys.front(),
                 "' in the group's store: ", plain_text(e));
      if (late) throw TimeoutError(text);
      throw PeerLostError(text);
    }
    if (look_ && !look_until_there(full, deadline)) {
      throw TimeoutError(str_of("waited ", deadline.elapsed_text(), " for '", missing(keys),
                                "' in the group's store"));
    }
    return values_of(full);
  }

 private:
  std::vector<std::string> values_of(const std::vector<std::string>& keys) const {
    std::vector<std::string> values;
    for (const std::vector<uint8_t>& value : store_->multiGet(keys)) {
      values.emplace_back(value.begin(), value.end());
    }
    return values;
  }

  // The values, if the store's own wait for them is no longer than the deadline allows, about; nothing
  // if it had to give up. About: a store and a group have the same timeout, as a rule, and the
  // group's runs since its creation began.
  std::optional<std::vector<std::string>> ask(const std::vector<std::string>& keys,
                                              const Deadline& deadline) const {
    const auto patience = store_->getTimeout();
    const auto left = deadline.left();
    if (patience.count() <= 0 || patience > left + left / 100) return std::nullopt;
    const Deadline asked;
    try {
      return values_of(keys);
    } catch (const std::exception& e) {
      if (std::chrono::duration<double>(patience).count() < asked.elapsed_seconds() + 0.05) {
        return std::nullopt;
      }
      throw PeerLostError(str_of("waited ", deadline.elapsed_text(), " for '", keys.front(),
                                 "' in the group's store: ", plain_text(e)));
    }
  }

  // Polls: a blocking wait would occupy the store's connection, which all threads of the process
  // share, also the threads that report a failure. False: not there at the deadline.
  bool look_until_there(const std::vector<std::string>& keys, const Deadline& deadline) const {
    std::chrono::microseconds pause = kShortestPause;
    while (!are_there(keys)) {
      if (deadline.left() <= pause) return false;
      look_();
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(2 * pause, kLongestPause);
    }
    return true;
  }

  bool are_there(const std::vector<std::string>& keys) const {
    try {
      return store_->check(keys);
    } catch (const std::exception& e) {
      // The process that served the store may have died: the group's watch finds that and reports
      // it better.
      const Deadline patience = Deadline::after(kPatience);
      for (; !patience.expired(); std::this_thread::sleep_for(kLongestPause)) look_();
      throw PeerLostError(str_of("the group's store failed while '", keys.front(),
                                 "' was waited for: ", plain_text(e)));
    }
  }

  std::string missing(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      try {
        if (!store_->check({"cgx/" + key})) return key;
      } catch (const std::exception&) {
        break;  // the store does not answer any more
      }
    }
    return keys.front();
  }

  static constexpr std::chrono::milliseconds kLongestPause{32}, kPatience{1500};
  static constexpr std::chrono::microseconds kShortestPause{100};
  const StorePtr store_;
  const std::function<void()> look_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_store_rendezvous(StorePtr store, std::function<void()> look) {
  return std::make_unique<StoreRendezvous>(std::move(store), std::move(look));
}

}  // namespace cgx
