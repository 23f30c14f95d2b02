// A process-wide slot through which a test module wraps the communicators of process groups: to
// make them fail at a chosen step, say. Empty in users' processes, where it costs a load a
// communicator.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "comm/communicator.h"

namespace cgx {

/// The test module is another shared object, with its own copy of the core. It fills the slot of
/// the extension module; nothing else of that module is reachable from there.
struct CommunicatorHook {
  using Wrap = std::unique_ptr<Communicator> (*)(std::unique_ptr<Communicator>);

  /// Null: none. What it returns lives as long as the communicator; the code must stay loaded.
  std::atomic<Wrap> wrap{nullptr};

  /// Throws the Error of the slot's own module: handlers there may not know the class of the same
  /// name of another module (its visibility is hidden).
  void (*fail)(const std::string& text);
};

/// The slot of this module.
CommunicatorHook& communicator_hook();

/// Name of the capsule that shows the slot to Python; it ends with the version of the struct.
inline constexpr char kCommunicatorHookCapsule[] = "torch_cgx.communicator_hook.1";

/// `communicator`, wrapped if the slot is filled.
inline std::unique_ptr<Communicator> hooked(std::unique_ptr<Communicator> communicator) {
  const CommunicatorHook::Wrap wrap = communicator_hook().wrap.load();
  return wrap == nullptr ? std::move(communicator) : wrap(std::move(communicator));
}

}  // namespace cgx
