#include "codec/gpu/run_table.h"

#include <algorithm>

#include "base/error.h"
#include "codec/families/gpu_list.h"

namespace cgx::gpu {

Type type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Type::kFloat32;
    case DType::kFloat16:
      return Type::kFloat16;
    case DType::kBFloat16:
      return Type::kBFloat16;
    default:
      throw ConfigError(str_of("dtype is ", static_cast<int>(dtype), ", allowed: 0 to 2"));
  }
}

void RunList::append(CodecRun run) {
  if (run.count == run.start) return;
  run.first_tile = tiles_;
  tiles_ += (run.count - run.start + run.tile - 1) / run.tile;
  if (run.tile_buckets > 0) run.first_bucket = run.start / run.bucket;
  run.first_long = long_buckets_;
  if (run.long_buckets) long_buckets_ += (run.count + run.bucket - 1) / run.bucket;
  runs_.push_back(run);
}

std::vector<uint32_t> RunList::run_of_tile() const {
  std::vector<uint32_t> numbers;
  numbers.reserve(tiles_ + 1);
  for (uint32_t r = 0; r < runs_.size(); ++r) {
    const uint64_t end = r + 1 < runs_.size() ? runs_[r + 1].first_tile : tiles_;
    numbers.resize(end, r);
  }
  return numbers;
}

Table RunList::table(const std::byte*& image) const {
  Table table{nullptr, nullptr, tiles_, long_buckets_, static_cast<uint32_t>(runs_.size()), 0, {}};
  if (runs_.size() == 1) table.only = runs_.front();
  if (runs_.size() < 2) return table;
  table.runs = reinterpret_cast<const CodecRun*>(image);
  image += runs_.size() * sizeof(CodecRun);
  table.run_of_tile = reinterpret_cast<const uint32_t*>(image);
  image += (tiles_ + 1) / 2 * 2 * sizeof(uint32_t);
  return table;
}

void RunList::append_to(std::vector<std::byte>& image) const {
  if (runs_.size() < 2) return;
  const auto add = [&](const void* from, size_t bytes) {
    const auto* at = static_cast<const std::byte*>(from);
    image.insert(image.end(), at, at + bytes);
  };
  add(runs_.data(), runs_.size() * sizeof(CodecRun));
  std::vector<uint32_t> numbers = run_of_tile();
  numbers.resize((numbers.size() + 1) / 2 * 2);
  add(numbers.data(), numbers.size() * sizeof(uint32_t));
}

std::vector<std::byte> RunTable::image() const {
  std::vector<std::byte> image;
  all_.append_to(image);
  if (warps_.empty()) return image;
  rest_.append_to(image);
  for (const OfFamily& one : warps_) one.list.append_to(image);
  return image;
}

Tables RunTable::tables(const std::byte* image) const {
  Tables tables;
  tables.all = tables.rest = all_.table(image);
  if (warps_.empty()) return tables;
  tables.rest = rest_.table(image);
  for (const OfFamily& one : warps_) {
    tables.warps.push_back({one.family, one.list.table(image)});
  }
  return tables;
}

void RunTable::append(CodecRun run, uint64_t by_warps) {
  if (run.count == 0) return;
  all_.append(run);
  CodecRun left = run;
  left.start = by_warps;
  rest_.append(left);
  if (by_warps == 0) return;
  auto found = std::find_if(warps_.begin(), warps_.end(),
                            [&](const OfFamily& one) { return one.family == run.family; });
  if (found == warps_.end()) found = warps_.insert(found, {run.family, {}});
  run.count = by_warps;
  found->list.append(run);
}

const RunList& RunTable::by_warps(uint8_t family) const {
  static const RunList none;
  for (const OfFamily& one : warps_) {
    if (one.family == family) return one.list;
  }
  return none;
}

void RunTable::add_raw(CodecRun run, DType wire, uint64_t payload) {
  run.family = kRaw;
  run.codes = payload;
  run.tile = kTile;
  run.wire = type_of(wire);
  append(run);
}

void RunTable::add(const Codec& codec, DType dtype, uint64_t value, uint64_t sum, uint64_t count,
                   uint64_t index, uint64_t payload, uint32_t message) {
  const Family& family = codec.config().family();
  if (family.gpu_runs == nullptr) {
    throw ConfigError(str_of("codec ", family.name, " has no kernels for GPUs"));
  }
  CodecRun run{};
  run.family = family.id;
  run.value = value;
  run.sum = sum;
  run.count = count;
  run.index = index;
  run.message = message;
  const size_t before = all_.runs().size();
  family.gpu_runs(codec.config(), *this, run, dtype, payload);
  for (size_t i = before; i < all_.runs().size(); ++i) {
    const uint8_t number = all_.runs()[i].family;
    if (number == kRaw || KernelFamilies::has(number)) continue;
    throw ConfigError(str_of("codec ", family.name, " is not in the list of the kernels"));
  }
}

}  // namespace cgx::gpu
