// A communicator over a library whose exchanges are collectives of all ranks on a GPU's stream, as
// NCCL's are: no headers, no flow control, no thread that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "device/queue.h"

namespace cgx {

/// The collectives of the library, run in the order of the queue's stream, on memory of the device.
/// Every rank makes the same calls with sizes that fit each other.
class ByteCollectives {
 public:
  /// A collective under way.
  class Ticket {
   public:
    virtual ~Ticket() = default;
    /// Makes the stream wait for it, not the calling thread.
    virtual void wait() = 0;
  };

  virtual ~ByteCollectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;
  /// Bytes for and from each rank lie one behind the other, in the order of the ranks.
  virtual std::unique_ptr<Ticket> all_to_all(const std::byte* from,
                                             const std::vector<size_t>& bytes_to, std::byte* to,
                                             const std::vector<size_t>& bytes_of,
                                             const Deadline& deadline) = 0;
  /// `bytes` of every rank, in the order of the ranks.
  virtual std::unique_ptr<Ticket> all_gather(const std::byte* from, size_t bytes, std::byte* to,
                                             const Deadline& deadline) = 0;
  virtual void abort() = 0;
};

/// `queue` outlives the result. `capacity`: bytes of an exchange.
std::unique_ptr<Communicator> make_lockstep(const device::Queue& queue,
                                            std::unique_ptr<ByteCollectives> library,
                                            size_t capacity);

}  // namespace cgx
