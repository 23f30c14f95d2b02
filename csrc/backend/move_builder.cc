#include "backend/move_builder.h"

#include <algorithm>
#include <utility>

#include "backend/gpu/checks.h"
#include "reduce/moves/room.h"
#include "tensors/dtypes.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

// The name of the collective in "cgx:broadcast".
const char* name_in(const char* title) { return title + sizeof("cgx:") - 1; }

}  // namespace

DType moved_as(const at::Tensor& tensor) {
  return dtype_of(tensor.scalar_type()).value_or(DType::kUInt8);
}

size_t values_in(const at::Tensor& tensor) {
  const auto values = static_cast<size_t>(tensor.numel());
  return dtype_of(tensor.scalar_type()) ? values : values * tensor.element_size();
}

Piece piece_of(const at::Tensor& tensor, size_t first) {
  return {static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())), values_in(tensor),
          first};
}

Piece part_of(const at::Tensor& tensor, int part, int parts) {
  Piece piece = piece_of(tensor);
  piece.values /= static_cast<size_t>(parts);
  piece.first = static_cast<size_t>(part) * piece.values;
  piece.data += piece.first * size_of(moved_as(tensor));
  return piece;
}

MoveBuilder::MoveBuilder(GpuGroup& gpu, Engine& host, MovePlans& plans, c10d::OpType op,
                         const char* title, const at::Tensor& like, const CallOptions& call)
    : host_(host),
      plans_(plans),
      like_(like),
      call_{.shape = {op, std::nullopt, like.scalar_type(), 0, -1, true},
            .title = title,
            .inputs = {},
            .outputs = {},
            .lane = nullptr,
            .parts = {},
            .average = false,
            .options = call,
            .why = ""} {
  if (!like.is_cuda()) return;
  refuse_in_capture(name_in(title), like);
  call_.lane = &gpu.lane(like);
}

const Engine& MoveBuilder::engine() const {
  return call_.lane != nullptr ? call_.lane->engine() : host_;
}

Move& MoveBuilder::begin(const MoveShape& shape) {
  if (shape.codec != raw_codec()) {
    // A broadcast opens one message at a time, others one for each peer.
    const bool tree = shape.operation == Operation::kBroadcast;
    const size_t messages = tree ? 1 : static_cast<size_t>(engine().size());
    check_bucket(*shape.codec, shape.dtype, engine().options(), messages);
  }
  call_.moves.push_back(plans_.make(shape, engine().topology()));
  return call_.moves.back();
}

void MoveBuilder::check_device(const at::Tensor& tensor) const {
  check_same_device(name_in(call_.title), like_, tensor);
}

at::Tensor MoveBuilder::source(const at::Tensor& tensor, const Tensors& outputs,
                               const at::Tensor& own) {
  check_device(tensor);
  at::Tensor memory = readable(tensor);
  for (const at::Tensor& output : outputs) {
    if (!share_memory(memory, output)) continue;
    const bool itself = own.defined() && own.const_data_ptr() == memory.const_data_ptr() &&
                        own.nbytes() == memory.nbytes() && output.is_same(own);
    if (itself) continue;
    memory = memory.clone();
    break;
  }
  call_.inputs.push_back(tensor);
  call_.moved.push_back(memory);
  return memory;
}

at::Tensor MoveBuilder::target(const at::Tensor& tensor, bool reads) {
  check_device(tensor);
  at::Tensor memory = reads ? readable(tensor) : writable(tensor);
  if (!memory.is_same(tensor)) call_.copies.push_back({memory, tensor});
  call_.outputs.push_back(tensor);
  call_.moved.push_back(memory);
  return memory;
}

Tensors MoveBuilder::targets(const Tensors& tensors) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(target(tensor));
  return all;
}

}  // namespace cgx
