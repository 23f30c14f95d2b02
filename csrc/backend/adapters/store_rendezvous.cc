#include "backend/adapters/store_rendezvous.h"

#include <algorithm>
#include <chrono>
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
    if (look_) look_until_there("cgx/" + key, deadline);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
    try {
      store_->wait({"cgx/" + key}, std::max(left, std::chrono::milliseconds(1)));
    } catch (const std::exception& e) {
      const std::string text = str_of("waited ", deadline.elapsed_text(), " for '", key,
                                      "' in the group's store: ", plain_text(e));
      // The wait was in whole milliseconds. If it ended earlier, the store's server has ended.
      if (deadline.left() < std::chrono::milliseconds(5)) throw TimeoutError(text);
      throw PeerLostError(text);
    }
    const std::vector<uint8_t> value = store_->get("cgx/" + key);
    return std::string(value.begin(), value.end());
  }

 private:
  // Polls: a blocking wait would occupy the store's connection, which all threads of the process
  // share, also the threads that report a failure.
  void look_until_there(const std::string& key, const Deadline& deadline) const {
    auto pause = std::chrono::milliseconds(1);
    while (!is_there(key) && deadline.left() > pause) {
      look_();
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  bool is_there(const std::string& key) const {
    try {
      return store_->check({key});
    } catch (const std::exception& e) {
      // The process that served the store may have died: the group's watch finds that and reports
      // it better.
      const Deadline patience = Deadline::after(kPatience);
      for (; !patience.expired(); std::this_thread::sleep_for(kLongestPause)) look_();
      throw PeerLostError(
          str_of("the group's store failed while '", key, "' was waited for: ", plain_text(e)));
    }
  }

  static constexpr std::chrono::milliseconds kLongestPause{32}, kPatience{1500};
  const StorePtr store_;
  const std::function<void()> look_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_store_rendezvous(StorePtr store, std::function<void()> look) {
  return std::make_unique<StoreRendezvous>(std::move(store), std::move(look));
}

}  // namespace cgx
