#include "reduce/schedule/device_stages.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"

namespace cgx {
namespace {

// A script that reduces ever new shapes must not fill the device.
constexpr size_t kMostSteps = 16384;
constexpr size_t kMostTableBytes = size_t{64} << 20;

// What a step does with its runs; the rest of `flags` says where their values lie.
enum Use : uint8_t { kEncodes = 0, kDecodes = 1, kSums = 2, kWritten = 3 };
uint8_t flags_of(Use use, bool first = false, bool second = false, bool third = false,
                 bool fourth = false) {
  return static_cast<uint8_t>(use | first << 4 | second << 5 | third << 6 | fourth << 7);
}

template <typename T>
void append(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

const Chunk& chunk_of(const Chunk* chunk) { return *chunk; }
template <typename Message>
const Chunk& chunk_of(const Message& message) {
  return *message.chunk;
}

unsigned char* bytes_at(const void* memory) {
  return static_cast<unsigned char*>(const_cast<void*>(memory));
}

// The address of the value whose place is 0: before the view's own memory where that begins later.
unsigned char* base_of(const View& view) {
  if (view.base == nullptr) return nullptr;
  const size_t skipped = view.packed ? 0 : view.first_value * size_of(view.dtype);
  return reinterpret_cast<unsigned char*>(reinterpret_cast<uintptr_t>(view.base) - skipped);
}

uint64_t place_in(const View& view, const Run& run) {
  return view.packed ? run.packed : run.offset;
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

// Looks at values of a tensor.
gpu::FiniteCall finite_call(const unsigned char* x, DType dtype) {
  return {{}, x, nullptr, gpu::type_of(dtype), {}};
}

// launch(some), with as many messages as a launch takes.
template <typename Message, typename Launch>
void in_launches(std::span<const Message> messages, const Launch& launch) {
  for (size_t first = 0; first < messages.size(); first += gpu::kMostMessages) {
    launch(messages.subspan(first, std::min<size_t>(messages.size() - first, gpu::kMostMessages)));
  }
}

}  // namespace

DeviceStages::DeviceStages(const device::Queue& queue, const gpu::KernelModule& kernels)
    : queue_(queue), kernels_(kernels), uploads_(queue) {}

DeviceStages::~DeviceStages() { queue_.finish("the last work of a group"); }

std::shared_ptr<std::byte> DeviceStages::allocate(size_t bytes) {
  const device::InContext here(queue_.driver(), queue_.context());
  size_t room = 4096;
  while (room < bytes) room *= 2;  // so that what is outgrown is no more than what is in use
  memory_.push_back(device::allocate_device(queue_.driver(), room));
  return memory_.back();
}

template <typename Make>
const DeviceStages::Step& DeviceStages::found(const Call& call, std::string key, const Make& make) {
  auto place = steps_.find(key);
  if (place != steps_.end()) return place->second;
  if (steps_.size() >= kMostSteps || table_bytes_ >= kMostTableBytes) {
    queue_.synchronize("work that uses old tables of runs", call.deadline);
    steps_.clear();
    table_bytes_ = 0;
  }
  struct OfSeed {
    uint64_t seed;
    gpu::RunTable table;
  };
  std::vector<OfSeed> made;
  make([&](uint64_t seed) -> gpu::RunTable& {
    auto same =
        std::find_if(made.begin(), made.end(), [&](const OfSeed& one) { return one.seed == seed; });
    if (same == made.end()) same = made.insert(same, {seed, {}});
    return same->table;
  });
  Step step;
  for (const OfSeed& one : made) {
    step.push_back({one.seed, gpu::DeviceTable(uploads_, one.table)});
    table_bytes_ += step.back().table.bytes();
  }
  return steps_.emplace(std::move(key), std::move(step)).first->second;
}

// A codec is the same one wherever its address is met in a plan, which keeps it alive; another plan
// may meet another codec there.
template <typename Chunks, typename Place>
const DeviceStages::Step& DeviceStages::tables(const Call& call, const Chunks& chunks,
                                               uint8_t flags, const Place& place) {
  std::string key;
  append(key, call.plan.serial);
  append(key, flags);
  for (const auto& message : chunks) {
    append(key, chunk_of(message).runs.size());
    for (const Run& run : chunk_of(message).runs) append(key, run);
  }
  return found(call, std::move(key), [&](const auto& table_of) {
    for (size_t message = 0; message < chunks.size(); ++message) {
      for (const Run& run : chunk_of(chunks[message]).runs) {
        const auto [value, sum] = place(run);
        table_of(run.codec->seed())
            .add(*run.codec, call.plan.dtype, value, sum, run.count, run.index, run.payload,
                 static_cast<uint32_t>(message));
      }
    }
  });
}

void DeviceStages::encode(Call& call, std::span<const ChunkToSend> chunks, const View& input,
                          Stage stage, bool final) {
  StageTimer timer(call.stats.encode_ns, "cgx:encode");
  const device::InContext here(queue_.driver(), queue_.context());
  in_launches(chunks, [&](std::span<const ChunkToSend> some) {
    const auto place = [&](const Run& run) {
      return std::pair<uint64_t, uint64_t>{place_in(input, run), 0};
    };
    for (const Seeded& seeded : tables(call, some, flags_of(kEncodes, input.packed), place)) {
      gpu::EncodeCall work{};
      work.x = base_of(input);
      work.key = key_of(call, seeded.seed, stage);
      work.type = gpu::type_of(input.dtype);
      work.feedback = feedback_of(call, input.plus_residual, gpu::Feedback::Keep::kSet,
                                  final ? call.plan.dtype : DType::kFloat32);
      for (size_t i = 0; i < some.size(); ++i) work.messages[i] = bytes_at(some[i].payload);
      kernels_.encode(seeded.table.tables(), work, queue_.stream());
      if (call.nonfinite != NonFinite::kRaise) continue;
      // What is finite here may not be so on the wire: in a type of 16 bits, or a format of fewer.
      gpu::FiniteCall written{};
      std::copy(std::begin(work.messages), std::end(work.messages), written.messages);
      look_for_nonfinite(call, seeded.table.tables(), written);
    }
  });
}

void DeviceStages::decode(Call& call, std::span<const ReceivedChunk> chunks, const View& output) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const device::InContext here(queue_.driver(), queue_.context());
  in_launches(chunks, [&](std::span<const ReceivedChunk> some) {
    const auto place = [&](const Run& run) {
      return std::pair<uint64_t, uint64_t>{place_in(output, run), 0};
    };
    for (const Seeded& seeded : tables(call, some, flags_of(kDecodes, output.packed), place)) {
      gpu::DecodeCall work{};
      work.y = base_of(output);
      work.type = gpu::type_of(output.dtype);
      for (size_t i = 0; i < some.size(); ++i) work.messages[i] = bytes_at(some[i].payload);
      kernels_.decode(seeded.table.tables(), work, queue_.stream());
    }
  });
}

void DeviceStages::sum(Call& call, const Chunk& chunk, const Sum& wanted) {
  StageTimer timer(call.stats.decode_ns, "cgx:decode");
  const device::InContext here(queue_.driver(), queue_.context());
  if (wanted.payloads.size() > gpu::kMostMessages) {
    throw ConfigError(str_of("a sum over ", wanted.payloads.size(), " ranks; kernels sum up to ",
                             gpu::kMostMessages));
  }
  const bool kept = wanted.output.base != nullptr;
  const std::vector<const Chunk*> all = {&chunk};
  const auto place = [&](const Run& run) {
    return std::pair<uint64_t, uint64_t>{wanted.own.base != nullptr ? place_in(wanted.own, run) : 0,
                                         kept ? place_in(wanted.output, run) : 0};
  };
  const uint8_t flags =
      flags_of(kSums, wanted.own.base != nullptr, wanted.own.packed, kept, wanted.output.packed);
  for (const Seeded& seeded : tables(call, all, flags, place)) {
    gpu::SumCall work{};
    // Kernels read values only where a rank has no payload.
    const bool reads_own =
        std::find(wanted.payloads.begin(), wanted.payloads.end(), nullptr) != wanted.payloads.end();
    work.x = reads_own ? base_of(wanted.own) : nullptr;
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
    kernels_.sum(seeded.table.tables(), work, queue_.stream());
  }
  if (!wanted.final || !kept || call.nonfinite != NonFinite::kRaise) return;
  std::string key;
  append(key, call.plan.serial);
  append(key, flags_of(kWritten, wanted.output.packed));
  append(key, wanted.output.dtype);
  for (const Run& run : chunk.runs) append(key, run);
  const Step& written = found(call, std::move(key), [&](const auto& table_of) {
    for (const Run& run : chunk.runs) {
      table_of(0).add(*raw_codec(), wanted.output.dtype, place_in(wanted.output, run), 0, run.count,
                      0, 0, 0);
    }
  });
  for (const Seeded& all_of_them : written) {
    look_for_nonfinite(call, all_of_them.table.tables(),
                       finite_call(base_of(wanted.output), wanted.output.dtype));
  }
}

void DeviceStages::check_input(Call& call, const void* data, size_t values) {
  if (call.nonfinite != NonFinite::kRaise || values == 0) return;
  const device::InContext here(queue_.driver(), queue_.context());
  const auto look = [&](const void* at, DType dtype) {
    gpu::RunTable table;  // of one run: the device has to hold none
    table.add(*raw_codec(), dtype, 0, 0, values, 0, 0, 0);
    look_for_nonfinite(call, table.tables(nullptr), finite_call(bytes_at(at), dtype));
  };
  look(data, call.plan.dtype);
  if (call.residual.base != nullptr) look(call.residual.base, call.residual.dtype);
}

void DeviceStages::look_for_nonfinite(Call& call, const gpu::Tables& tables, gpu::FiniteCall work) {
  if (!flag_) {
    flag_ = device::allocate_device(queue_.driver(), sizeof(uint32_t));
    host_flag_ = device::allocate_pinned(queue_.driver(), sizeof(uint32_t));
  }
  auto* met = reinterpret_cast<volatile uint32_t*>(host_flag_.get());
  *met = 0;
  queue_.to_device(flag_.get(), host_flag_.get(), sizeof(uint32_t));
  work.met = reinterpret_cast<uint32_t*>(flag_.get());
  kernels_.finite(tables, work, queue_.stream());
  queue_.to_host(host_flag_.get(), flag_.get(), sizeof(uint32_t));
  queue_.synchronize("a look at the values (nonfinite='raise')", call.deadline);
  if (*met != 0) call.met_nonfinite = true;
}

}  // namespace cgx
