#include "codec/gpu/run_table.h"

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
  }
  throw ConfigError(str_of("dtype is ", static_cast<int>(dtype), ", allowed: 0 to 2"));
}

void RunTable::append(CodecRun run) {
  if (run.count == 0) return;
  run.first_tile = tiles_;
  tiles_ += (run.count + run.tile - 1) / run.tile;
  run.first_long = long_buckets_;
  if (run.long_buckets) long_buckets_ += (run.count + run.bucket - 1) / run.bucket;
  runs_.push_back(run);
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
  const size_t before = runs_.size();
  family.gpu_runs(codec.config(), *this, run, dtype, payload);
  for (size_t i = before; i < runs_.size(); ++i) {
    if (runs_[i].family == kRaw || KernelFamilies::has(runs_[i].family)) continue;
    throw ConfigError(str_of("codec ", family.name, " is not in the list of the kernels"));
  }
}

}  // namespace cgx::gpu
