// Sends and receives of a group whose ranks all share memory.
//
// Thread-safety: as c10d::Backend; close() and abandon() once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/adapters/torch_types.h"
#include "backend/executor.h"
#include "backend/group_context.h"
#include "backend/inner/coalescing.h"
#include "comm/mail/mail.h"

namespace cgx {

class MailRoom {
 public:
  /// All outlive this object. `carrier`: the communicator's name, for errors.
  MailRoom(const GroupContext& group, Executor& executor, Coalescing& coalescing,
           std::unique_ptr<MailMemory> memory, std::string carrier);

  /// A tensor of a GPU is copied through the host. `peer` empty: from any rank. ValueError: peer,
  /// tag or tensor; ResourceError: no memory in /dev/shm, or no thread.
  WorkPtr send(const at::Tensor& tensor, int peer, int tag);
  WorkPtr receive(const at::Tensor& tensor, std::optional<int> peer, int tag);

  /// Ends what is under way. The caller does not hold Python's lock.
  void close();
  /// In a forked child: leaks the mail, whose thread stayed in the parent.
  void abandon();

 private:
  struct Call;
  WorkPtr run(Call call);

  const GroupContext& group_;
  Executor& executor_;
  Coalescing& coalescing_;
  const std::string carrier_;
  std::shared_ptr<Mail> mail_;
};

}  // namespace cgx
