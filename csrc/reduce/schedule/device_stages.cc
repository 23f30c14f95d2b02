#include "reduce/schedule/device_stages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

// A script that reduces ever new shapes must not fill the device.
constexpr size_t kMostTables = 16384;

unsigned char* bytes_at(const void* memory) {
  return static_cast<unsigned char*>(const_cast<void*>(memory));
}

// The address of the value whose place is 0: before the view's own memory where that begins later.
unsigned char* base_of(const View& view) {
  if (view.base == nullptr) return nullptr;
  const size_t skipped = view.packed ? 0 : view.first_value * size_of(view.dtype);
  return reinterpret_cast<unsigned char*>(reinterpret_cast<uintptr_t>(view.base) - skipped);
}

uint64_t place_in(const View& view, const Piece& piece) {
  return view.packed ? piece.packed : piece.offset;
}

gpu::Feedback feedback_of(const Call& call, bool plus, gpu::Feedback::Keep keep, DType rounded) {
  if (call.residual.base == nullptr) return {};
  return {base_of(call.residual), gpu::type_of(call.residual.dtype), gpu::type_of(rounded), plus,
          keep};
}

gpu::Feedback::Keep keep_of(Feedback feedback) {
  switch (feedback) {
    case Feedback::kSet:
      return gpu::Feedback::Keep::kSet;
    case Feedback::kAdd:
      return gpu::Feedback::Keep::kAdd;
    case Feedback::kNone:
      break;
  }
  return gpu::Feedback::Keep::kNothing;
}

// As many as a launch takes.
template <typename Message, typename Launch>
void in_parts(const std::vector<Message>& messages, const Launch& launch) {
  for (size_t first = 0; first < messages.size(); first += gpu::kMostMessages) {
    const size_t end = std::min<size_t>(messages.size(), first + gpu::kMostMessages);
    launch(std::vector<Message>(messages.begin() + static_cast<ptrdiff_t>(first),
                                messages.begin() + static_cast<ptrdiff_t>(end)));
  }
}

}  // namespace

DeviceStages::DeviceStages(const device::Queue& queue, const gpu::KernelModule& kernels)
    : queue_(queue), kernels_(kernels) {}

DeviceStages::~DeviceStages() { queue_.finish("the last work of a group"); }

std::shared_ptr<std::byte> DeviceStages::allocate(size_t bytes) {
  const device::InContext here(queue_.driver(), queue_.context());
  size_t room = 4096;
  while (room < bytes) room *= 2;  // so that what is outgrown is no more than what is in use
  memory_.push_back(device::allocate_device(queue_.driver(), room));
  return memory_.back();
}

template <typename Chunks, typename Place>
std::vector<DeviceStages::Seeded> DeviceStages::tables(const Call& call, const Chunks& chunks,
                                                       const Place& place) const {
  std::vector<Seeded> all;
  for (size_t message = 0; message < chunks.size(); ++message) {
    for (const Piece& piece : chunks[message].chunk->pieces) {
      const uint64_t seed = piece.codec->seed();
      auto found =
          std::find_if(all.begin(), all.end(), [&](const Seeded& s) { return s.seed == seed; });
      if (found == all.end()) found = all.insert(all.end(), Seeded{seed, {}});
      const auto [value, sum] = place(piece);
      found->table.add(*piece.codec, call.plan.dtype, value, sum, piece.count, piece.offset,
                       piece.payload, static_cast<uint32_t>(message));
    }
  }
  return all;
}

gpu::Table DeviceStages::on_device(const gpu::RunTable& table) {
  const auto& runs = table.runs();
  std::string key(reinterpret_cast<const char*>(runs.data()), runs.size() * sizeof(runs.front()));
  auto found = tables_.find(key);
  if (found == tables_.end()) {
    if (tables_.size() >= kMostTables) {
      queue_.synchronize("work that uses old tables of runs",
                         Deadline::after(device::Queue::kGrace));
      tables_.clear();
    }
    gpu::DeviceTable made(queue_.driver(), table, queue_.stream());
    found = tables_.emplace(std::move(key), std::move(made)).first;
  }
  return found->second.view();
}

void DeviceStages::encode(Call& call, const std::vector<ChunkToSend>& chunks, const View& input,
                          Stage stage, bool final) {
  const device::InContext here(queue_.driver(), queue_.context());
  in_parts(chunks, [&](const std::vector<ChunkToSend>& part) {
    const auto place = [&](const Piece& piece) {
      return std::pair<uint64_t, uint64_t>{place_in(input, piece), 0};
    };
    for (const Seeded& seeded : tables(call, part, place)) {
      gpu::EncodeCall work{};
      work.table = on_device(seeded.table);
      work.x = base_of(input);
      work.key = key_of(call, seeded.seed, stage);
      work.type = gpu::type_of(input.dtype);
      work.feedback = feedback_of(call, input.plus_residual, gpu::Feedback::Keep::kSet,
                                  final ? call.plan.dtype : DType::kFloat32);
      for (size_t i = 0; i < part.size(); ++i) work.messages[i] = bytes_at(part[i].payload);
      kernels_.encode(work, queue_.stream());
      // What is finite here may not be so in a type of 16 bits.
      if (call.nonfinite == NonFinite::kRaise && input.dtype == DType::kFloat32) {
        look_for_nonfinite(call, seeded.table, work.x, input.dtype);
      }
    }
  });
}

void DeviceStages::decode(Call& call, const std::vector<ReceivedChunk>& chunks,
                          const View& output) {
  const device::InContext here(queue_.driver(), queue_.context());
  in_parts(chunks, [&](const std::vector<ReceivedChunk>& part) {
    const auto place = [&](const Piece& piece) {
      return std::pair<uint64_t, uint64_t>{place_in(output, piece), 0};
    };
    for (const Seeded& seeded : tables(call, part, place)) {
      gpu::DecodeCall work{};
      work.table = on_device(seeded.table);
      work.y = base_of(output);
      work.type = gpu::type_of(output.dtype);
      for (size_t i = 0; i < part.size(); ++i) work.messages[i] = bytes_at(part[i].payload);
      kernels_.decode(work, queue_.stream());
    }
  });
}

void DeviceStages::sum(Call& call, const Chunk& chunk, const Sum& wanted) {
  const device::InContext here(queue_.driver(), queue_.context());
  if (wanted.payloads.size() > gpu::kMostMessages) {
    throw ConfigError(str_of("a sum over ", wanted.payloads.size(), " ranks; kernels sum up to ",
                             gpu::kMostMessages));
  }
  const bool kept = wanted.output.base != nullptr;
  const std::vector<ReceivedChunk> all = {{&chunk, nullptr}};
  const auto place = [&](const Piece& piece) {
    return std::pair<uint64_t, uint64_t>{
        wanted.own.base != nullptr ? place_in(wanted.own, piece) : 0,
        kept ? place_in(wanted.output, piece) : 0};
  };
  for (const Seeded& seeded : tables(call, all, place)) {
    gpu::SumCall work{};
    work.table = on_device(seeded.table);
    work.x = base_of(wanted.own);
    work.encoded = bytes_at(wanted.encoded);
    work.y = base_of(wanted.output);
    work.key = key_of(call, seeded.seed, Stage::kSum);
    work.divisor = wanted.divisor;
    work.ranks = static_cast<uint32_t>(wanted.payloads.size());
    work.own = gpu::type_of(wanted.own.dtype);
    work.type = gpu::type_of(wanted.output.dtype);
    for (size_t i = 0; i < wanted.payloads.size(); ++i) {
      work.payloads[i] = bytes_at(wanted.payloads[i]);
    }
    const bool plus = wanted.own.plus_residual;
    if (plus || wanted.feedback != Feedback::kNone) {
      work.feedback = feedback_of(call, plus, keep_of(wanted.feedback),
                                  kept ? wanted.output.dtype : DType::kFloat32);
    }
    kernels_.sum(work, queue_.stream());
  }
  if (!wanted.final || !kept || call.nonfinite != NonFinite::kRaise) return;
  gpu::RunTable written;
  for (const Piece& piece : chunk.pieces) {
    written.add(*raw_codec(), wanted.output.dtype, place_in(wanted.output, piece), 0, piece.count,
                0, 0, 0);
  }
  look_for_nonfinite(call, written, base_of(wanted.output), wanted.output.dtype);
}

void DeviceStages::check_input(Call& call, const void* data, size_t values) {
  if (call.nonfinite != NonFinite::kRaise || values == 0) return;
  const device::InContext here(queue_.driver(), queue_.context());
  const auto look = [&](const void* at, DType dtype) {
    gpu::RunTable table;
    table.add(*raw_codec(), dtype, 0, 0, values, 0, 0, 0);
    look_for_nonfinite(call, table, at, dtype);
  };
  look(data, call.plan.dtype);
  if (call.residual.base != nullptr) look(call.residual.base, call.residual.dtype);
}

void DeviceStages::look_for_nonfinite(Call& call, const gpu::RunTable& table, const void* data,
                                      DType dtype) {
  if (!flag_) {
    flag_ = device::allocate_device(queue_.driver(), sizeof(uint32_t));
    host_flag_ = device::allocate_pinned(queue_.driver(), sizeof(uint32_t));
  }
  auto* met = reinterpret_cast<volatile uint32_t*>(host_flag_.get());
  *met = 0;
  queue_.to_device(flag_.get(), host_flag_.get(), sizeof(uint32_t));
  gpu::FiniteCall work{};
  work.table = on_device(table);
  work.x = bytes_at(data);
  work.met = reinterpret_cast<uint32_t*>(flag_.get());
  work.type = gpu::type_of(dtype);
  kernels_.finite(work, queue_.stream());
  queue_.to_host(host_flag_.get(), flag_.get(), sizeof(uint32_t));
  queue_.synchronize("a look at the values (nonfinite='raise')", call.deadline);
  if (*met != 0) call.met_nonfinite = true;
}

}  // namespace cgx
