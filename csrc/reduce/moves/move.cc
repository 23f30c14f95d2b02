#include "reduce/moves/move.h"

#include <algorithm>
#include <utility>

#include "reduce/plan/cut.h"

namespace cgx {

Move make_move(const MoveShape& shape, const Topology& topology) {
  Move move;
  move.codec = shape.codec;
  move.gives.resize(static_cast<size_t>(topology.size()));
  move.gets.resize(move.gives.size());
  std::vector<Layer> layers;
  if (shape.codec != raw_codec()) layers.push_back({shape.values, shape.codec});
  move.plan = plan_move(shape.operation, shape.dtype, shape.values, shape.root, std::move(layers),
                        topology);
  return move;
}

size_t segment_values(const Codec& codec, DType dtype, size_t bytes) {
  const size_t granule = codec.granule();
  if (&codec == raw_codec().get()) {
    return std::max(bytes / size_of(dtype) / granule, size_t{1}) * granule;
  }
  // No codec takes less than a bit per value.
  return std::max(fitting(codec, granule, std::max(8 * bytes, granule), bytes, dtype), granule);
}

void make_room(const Call& call, Communicator& comm, size_t messages, size_t payload_bytes) {
  const size_t checksum = call.identity.checksum ? kChecksumBytes : 0;
  // Of which a communicator may need some to align messages.
  const size_t around = Messages::kPayloadOffset + checksum + kRunAlignment;
  const size_t bytes = messages * (payload_bytes + around);
  if (bytes > comm.capacity()) comm.make_room(bytes);
}

Chunk chunk_of(const Codec& codec, DType dtype, size_t first, size_t count) {
  Chunk chunk;
  append(chunk, {first, count, &codec, first}, dtype);
  return chunk;
}

}  // namespace cgx
