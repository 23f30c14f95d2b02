#include "backend/move_calls.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/inner/gloo_tensors.h"
#include "backend/move_builder.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

bool alike(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors.front().numel();
  });
}

// Rows of each rank's part, in values.
std::vector<size_t> part_values(const char* list, const at::Tensor& tensor,
                                const std::vector<int64_t>& splits, int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const auto ranks = static_cast<size_t>(size);
  const size_t row = rows == 0 ? 0 : values_in(tensor) / static_cast<size_t>(rows);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "cgx: all_to_all_single of ", rows, " rows on ", size,
                      " ranks; expected a multiple, or split sizes");
    return std::vector<size_t>(ranks, static_cast<size_t>(rows / size) * row);
  }
  TORCH_CHECK_VALUE(splits.size() == ranks, "cgx: all_to_all_single: ", splits.size(), " ", list,
                    " split sizes on ", size, " ranks; expected one per rank");
  std::vector<size_t> values;
  int64_t sum = 0;
  for (int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "cgx: all_to_all_single: a split size of the ", list, " is ",
                      split, "; allowed: 0 or more");
    values.push_back(static_cast<size_t>(split) * row);
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, "cgx: all_to_all_single: the ", list, " has ", rows,
                    " rows, its split sizes add up to ", sum, "; they must be equal");
  return values;
}

// Consecutive parts of a dense tensor.
void cut(std::vector<std::optional<Piece>>& pieces, const at::Tensor& tensor,
         const std::vector<size_t>& values) {
  Piece next = piece_of(tensor);
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    next.values = values[rank];
    pieces[rank] = next;
    next.first += next.values;
    next.data += next.values * size_of(moved_as(tensor));
  }
}

int bits_on_wire(const std::shared_ptr<const Codec>& codec) {
  return codec == raw_codec() ? 0 : codec->bits();
}

}  // namespace

bool MoveCalls::serves(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_nested()) return false;
  return tensor.device().is_cpu() || (tensor.is_cuda() && gpu_.moves());
}

bool MoveCalls::serves(const Tensors& tensors) const {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(),
                                         [&](const at::Tensor& tensor) { return serves(tensor); });
}

MoveBuilder MoveCalls::begin(c10d::OpType op, const char* title, const at::Tensor& like,
                             const CallOptions& call) const {
  return MoveBuilder(gpu_, engine_, plans_, op, title, like, call);
}

EngineCall MoveCalls::broadcast(const at::Tensor& tensor, int64_t root,
                                const std::shared_ptr<const Codec>& codec, const CallOptions& call,
                                std::string why) const {
  check_root("broadcast", root, group_.size);
  check_writable("broadcast", tensor);
  MoveBuilder build = begin(c10d::OpType::BROADCAST, "cgx:broadcast", tensor, call);
  const bool gives = group_.rank == root;
  const bool rounds = codec != raw_codec();  // then the root's values change as well
  at::Tensor memory;
  if (gives && !rounds) {
    memory = build.source(tensor, {});
    build.call().outputs.push_back(tensor);
  } else {
    memory = build.target(tensor, gives);
    build.call().inputs.push_back(tensor);
  }
  Move& move = build.begin({.operation = Operation::kBroadcast,
                            .dtype = moved_as(tensor),
                            .values = values_in(tensor),
                            .root = static_cast<int>(root),
                            .codec = codec});
  (gives ? move.gives : move.gets)[static_cast<size_t>(root)] = piece_of(memory);
  CallShape& shape = build.call().shape;
  shape.values = tensor.numel();
  shape.root = static_cast<int>(root);
  shape.bits = bits_on_wire(codec);
  build.call().why = std::move(why);
  return build.done();
}

// Each host gets the values of another one once, by the schedule that all-gathers of shards have. As
// bytes: a NaN of 16 bits keeps its payload.
void MoveCalls::gather_on_two_levels(EngineCall& call, const at::Tensor& from,
                                     const at::Tensor& to) const {
  auto plan = engine_.plan_shards(Operation::kAllGather, from.nbytes(), raw_codec(), DType::kUInt8);
  call.parts.push_back({plan, from, to, to});
}

EngineCall MoveCalls::all_gather(const Tensors& outputs, const at::Tensor& input,
                                 const CallOptions& call) const {
  check_list("all_gather", "outputs", outputs.size(), static_cast<size_t>(group_.size));
  check_same_type("all_gather", outputs, input);
  const at::Tensor& own = outputs[static_cast<size_t>(group_.rank)];
  check_alike("all_gather", {own}, input);
  check_writable("all_gather", outputs);
  MoveBuilder build = begin(c10d::OpType::ALLGATHER, "cgx:all_gather", input, call);
  const bool equal = alike(outputs);
  if (equal && engine_.topology().two_levels()) {
    const at::Tensor whole = at::empty({group_.size, input.numel()}, input.options());
    gather_on_two_levels(build.call(), build.source(input, {}), whole);
    for (int rank = 0; rank < group_.size; ++rank) {
      const at::Tensor& output = outputs[static_cast<size_t>(rank)];
      build.call().outputs.push_back(output);
      build.call().copies.push_back({whole.select(0, rank).view(output.sizes()), output});
    }
    build.call().shape.values = input.numel();
    return build.done();
  }
  const Tensors to = build.targets(outputs);
  const at::Tensor from = build.source(input, to, to[static_cast<size_t>(group_.rank)]);
  Move& move = build.begin({.operation = Operation::kAllGather,
                            .dtype = moved_as(input),
                            .values = equal ? values_in(input) : 0,
                            .codec = raw_codec()});
  move.alike = true;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    move.gives[rank] = piece_of(from);
    move.gets[rank] = piece_of(to[rank]);
  }
  build.call().shape.values = equal ? input.numel() : CallShape::kUneven;
  return build.done();
}

EngineCall MoveCalls::all_gather_coalesced(const std::vector<Tensors>& outputs,
                                           const Tensors& inputs, const CallOptions& call) const {
  const char* what = "all_gather_coalesced";
  check_same_type(what, inputs, first_of(inputs));
  check_list(what, "outputs", outputs.size(), static_cast<size_t>(group_.size));
  const Tensors all = flatten(outputs);
  check_same_type(what, all, inputs.front());
  check_writable(what, outputs);
  MoveBuilder build =
      begin(c10d::OpType::ALLGATHER_COALESCED, "cgx:all_gather", inputs.front(), call);
  const Tensors to = build.targets(all);
  int64_t values = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor from = build.source(inputs[i], to);
    Move& move = build.begin({.operation = Operation::kAllGather,
                              .dtype = moved_as(inputs[i]),
                              .values = values_in(inputs[i]),
                              .codec = raw_codec()});
    move.alike = true;
    for (size_t rank = 0; rank < outputs.size(); ++rank) {
      TORCH_CHECK_VALUE(outputs[rank].size() == inputs.size(), "cgx: ", what, ": ", inputs.size(),
                        " inputs, and ", outputs[rank].size(), " outputs of rank ", rank,
                        "; expected as many");
      check_alike(what, {outputs[rank][i]}, inputs[i]);
      move.gives[rank] = piece_of(from);
      move.gets[rank] = piece_of(to[rank * inputs.size() + i]);
    }
    values += inputs[i].numel();
  }
  build.call().shape.values = values;
  return build.done();
}

EngineCall MoveCalls::all_gather_single(const at::Tensor& output, const at::Tensor& input,
                                        const CallOptions& call) const {
  check_same_type("all_gather", {output}, input);
  TORCH_CHECK_VALUE(output.numel() == input.numel() * group_.size, "cgx: all_gather on ",
                    group_.size, " ranks: input has ", input.numel(), " values, output has ",
                    output.numel(), "; the output must have ", group_.size, " times as many");
  check_writable("all_gather", output);
  MoveBuilder build = begin(c10d::OpType::_ALLGATHER_BASE, "cgx:all_gather", input, call);
  build.call().shape.values = output.numel();
  const at::Tensor to = build.target(output);
  if (engine_.topology().two_levels()) {
    gather_on_two_levels(build.call(), build.source(input, {to}), to);
    return build.done();
  }
  at::Tensor from = readable(input);
  const Piece own = part_of(to, group_.rank, group_.size);
  if (share_memory(from, to) && piece_of(from).data != own.data) from = from.clone();
  build.call().inputs.push_back(input);
  build.call().moved.push_back(from);
  Move& move = build.begin({.operation = Operation::kAllGather,
                            .dtype = moved_as(input),
                            .values = values_in(output),
                            .codec = raw_codec()});
  move.alike = true;
  for (int rank = 0; rank < group_.size; ++rank) {
    move.gives[static_cast<size_t>(rank)] = piece_of(from);
    move.gets[static_cast<size_t>(rank)] = part_of(to, rank, group_.size);
  }
  return build.done();
}

EngineCall MoveCalls::gather(const std::vector<Tensors>& outputs, const at::Tensor& input,
                             int64_t root, const CallOptions& call) const {
  check_root("gather", root, group_.size);
  check_lists("gather", "outputs", outputs, group_.rank, root, group_.size);
  const Tensors list = flatten(outputs);
  check_alike("gather", list, input);
  check_writable("gather", outputs);
  MoveBuilder build = begin(c10d::OpType::GATHER, "cgx:gather", input, call);
  const Tensors to = build.targets(list);
  const bool is_root = group_.rank == root;
  const at::Tensor own = is_root ? to[static_cast<size_t>(root)] : at::Tensor();
  const at::Tensor from = build.source(input, to, own);
  Move& move = build.begin({.operation = Operation::kGather,
                            .dtype = moved_as(input),
                            .values = values_in(input),
                            .root = static_cast<int>(root),
                            .codec = raw_codec()});
  move.gives[static_cast<size_t>(root)] = piece_of(from);
  for (size_t rank = 0; rank < to.size(); ++rank) move.gets[rank] = piece_of(to[rank]);
  build.call().shape.values = input.numel();
  build.call().shape.root = static_cast<int>(root);
  return build.done();
}

EngineCall MoveCalls::scatter(const at::Tensor& output, const std::vector<Tensors>& inputs,
                              int64_t root, const CallOptions& call) const {
  check_root("scatter", root, group_.size);
  check_lists("scatter", "inputs", inputs, group_.rank, root, group_.size);
  const Tensors list = flatten(inputs);
  check_alike("scatter", list, output);
  check_writable("scatter", output);
  MoveBuilder build = begin(c10d::OpType::SCATTER, "cgx:scatter", output, call);
  const at::Tensor to = build.target(output);
  Move& move = build.begin({.operation = Operation::kScatter,
                            .dtype = moved_as(output),
                            .values = values_in(output),
                            .root = static_cast<int>(root),
                            .codec = raw_codec()});
  move.gets[static_cast<size_t>(root)] = piece_of(to);
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const bool own = static_cast<int>(rank) == group_.rank;
    move.gives[rank] = piece_of(build.source(list[rank], {to}, own ? to : at::Tensor()));
  }
  build.call().shape.values = output.numel();
  build.call().shape.root = static_cast<int>(root);
  return build.done();
}

EngineCall MoveCalls::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<int64_t>& output_splits,
                                        const std::vector<int64_t>& input_splits,
                                        const std::shared_ptr<const Codec>& codec,
                                        const CallOptions& call, std::string why) const {
  check_same_type("all_to_all_single", {output}, input);
  check_writable("all_to_all_single", output);
  const auto gets = part_values("output", output, output_splits, group_.size);
  const auto gives = part_values("input", input, input_splits, group_.size);
  const auto rank = static_cast<size_t>(group_.rank);
  TORCH_CHECK_VALUE(gets[rank] == gives[rank], "cgx: all_to_all_single: rank ", group_.rank,
                    " gives ", gives[rank], " values to itself and gets ", gets[rank],
                    "; they must be equal");
  MoveBuilder build = begin(c10d::OpType::ALLTOALL_BASE, "cgx:all_to_all", input, call);
  const at::Tensor to = build.target(output);
  const at::Tensor from = build.source(input, {to});
  Move& move = build.begin({.operation = Operation::kAllToAll,
                            .dtype = moved_as(input),
                            .values = values_in(input),
                            .codec = codec});
  cut(move.gives, from, gives);
  cut(move.gets, to, gets);
  // The numbers of values are the ranks' own.
  build.call().shape.values = CallShape::kUneven;
  build.call().shape.bits = bits_on_wire(codec);
  build.call().why = std::move(why);
  return build.done();
}

EngineCall MoveCalls::all_to_all(const Tensors& outputs, const Tensors& inputs,
                                 const CallOptions& call) const {
  check_list("all_to_all", "inputs", inputs.size(), static_cast<size_t>(group_.size));
  check_list("all_to_all", "outputs", outputs.size(), static_cast<size_t>(group_.size));
  for (const Tensors* tensors : {&inputs, &outputs}) {
    check_same_type("all_to_all", *tensors, inputs.front());
  }
  const auto rank = static_cast<size_t>(group_.rank);
  check_alike("all_to_all", {outputs[rank]}, inputs[rank]);
  check_writable("all_to_all", outputs);
  MoveBuilder build = begin(c10d::OpType::ALLTOALL, "cgx:all_to_all", inputs.front(), call);
  const Tensors to = build.targets(outputs);
  Move& move = build.begin({.operation = Operation::kAllToAll,
                            .dtype = moved_as(inputs.front()),
                            .values = 0,
                            .codec = raw_codec()});
  for (size_t peer = 0; peer < to.size(); ++peer) {
    const at::Tensor from = build.source(inputs[peer], to, peer == rank ? to[peer] : at::Tensor());
    move.gives[peer] = piece_of(from);
    move.gets[peer] = piece_of(to[peer]);
  }
  build.call().shape.values = CallShape::kUneven;
  return build.done();
}

EngineCall MoveCalls::barrier(const CallOptions& call) const {
  EngineCall made{.shape = {c10d::OpType::BARRIER},
                  .title = "cgx:barrier",
                  .inputs = {},
                  .outputs = {},
                  .lane = nullptr,
                  .parts = {},
                  .average = false,
                  .options = call,
                  .why = ""};
  made.shape.engine = true;
  made.moves.push_back(
      make_move({.operation = Operation::kBarrier, .codec = raw_codec()}, engine_.topology()));
  return made;
}

}  // namespace cgx
