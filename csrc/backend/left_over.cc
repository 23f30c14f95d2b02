#include "backend/left_over.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cgx {
namespace {

using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;

// Never destroyed: groups may live until the end of the process.
struct Groups {
  const pid_t process = getpid();
  std::mutex mutex;
  std::unordered_map<LeftOver*, WeakBackend> all;
};

// Null in a forked child, which has no copy of the groups' threads and perhaps a locked mutex, until
// it makes a group itself.
Groups* groups(bool make = false) {
  static std::atomic<Groups*> current{nullptr};
  Groups* now = current;
  if (now != nullptr && now->process == getpid()) return now;
  if (!make) return nullptr;
  auto* fresh = new Groups;
  return current.compare_exchange_strong(now, fresh) ? fresh : groups(make);
}

}  // namespace

void LeftOver::add(const BackendPtr& backend, LeftOver* group) {
  Groups& here = *groups(true);
  std::lock_guard<std::mutex> lock(here.mutex);
  here.all.emplace(group, WeakBackend(backend));
}

void LeftOver::forget(LeftOver* group) {
  Groups* here = groups();
  if (here == nullptr) return;
  WeakBackend last{BackendPtr()};  // let go of after the lock
  std::lock_guard<std::mutex> lock(here->mutex);
  if (auto found = here->all.find(group); found != here->all.end()) {
    last = std::move(found->second);
    here->all.erase(found);
  }
}

void LeftOver::close_all() {
  Groups* here = groups();
  if (here == nullptr) return;
  std::vector<std::pair<LeftOver*, BackendPtr>> alive;
  {
    std::lock_guard<std::mutex> lock(here->mutex);
    for (const auto& [group, weak] : here->all) {
      if (BackendPtr backend = weak.lock()) alive.emplace_back(group, std::move(backend));
    }
  }
  for (const auto& [group, backend] : alive) {
    try {
      group->close_if_idle();
    } catch (const std::exception&) {
      // The process ends; what it wanted of the group, it has.
    }
  }
}

}  // namespace cgx
