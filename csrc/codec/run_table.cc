#include "codec/run_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "codec/maxmin.h"

namespace cgx::gpu {
namespace {

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

}  // namespace

void RunTable::append(CodecRun run) {
  if (run.count == 0) return;
  run.first_tile = tiles_;
  tiles_ += (run.count + run.tile - 1) / run.tile;
  run.first_long = wide_buckets_;
  if (run.kind == Kind::kLong) wide_buckets_ += (run.count + run.bucket - 1) / run.bucket;
  runs_.push_back(run);
}

void RunTable::add_raw(CodecRun run, DType wire, uint64_t payload) {
  run.kind = Kind::kRaw;
  run.codes = payload;
  run.tile = kTile;
  run.wire = type_of(wire);
  append(run);
}

void RunTable::add_maxmin(CodecRun run, uint64_t payload) {
  const uint64_t buckets = (run.count + run.bucket - 1) / run.bucket;
  // A single bucket needs no more room than its values.
  if (buckets == 1) run.bucket = (run.count + 7) / 8 * 8;
  run.meta = payload;
  run.codes = payload + buckets * sizeof(MaxMinMeta);
  // Tiles start where a bucket does, and at a whole byte of the codes.
  const uint64_t unit = run.bucket > kTile ? run.bucket : std::lcm(run.bucket, uint64_t{8});
  run.kind = unit > kTile ? Kind::kLong : Kind::kMaxMin;
  run.tile = unit > kTile ? kTile : kTile / unit * unit;
  // Exact for places and buckets up to kTile: what is added to 2^22 / bucket, times the place,
  // stays below one.
  const auto narrow = static_cast<uint32_t>(std::min<uint64_t>(run.bucket, kTile));
  if (run.bucket % kGroup == 0) run.inverse = ((1u << 22) + narrow - 1) / narrow;
  append(run);
}

void RunTable::add(const Codec& codec, DType dtype, uint64_t value, uint64_t sum, uint64_t count,
                   uint64_t index, uint64_t payload, uint32_t message) {
  const CodecSpec& spec = codec.spec();
  CodecRun run{};
  run.value = value;
  run.sum = sum;
  run.count = count;
  run.index = index;
  run.message = message;
  if (spec.name == "raw") return add_raw(run, dtype, payload);
  if (spec.name == "bf16" || spec.name == "fp16") {
    const DType wire = spec.name == "bf16" ? DType::kBFloat16 : DType::kFloat16;
    return add_raw(run, dtype == DType::kFloat32 ? wire : dtype, payload);
  }
  if (spec.name != "maxmin") {
    throw ConfigError(
        str_of("codec \"", spec.name, "\" has no kernels, allowed: maxmin, bf16, ", "fp16, raw"));
  }
  run.bucket = static_cast<uint64_t>(spec.bucket_size);
  run.bits = static_cast<uint8_t>(spec.bits);
  run.stochastic = spec.rounding == Rounding::kStochastic ? 1 : 0;
  const uint64_t rest = spec.skip_incomplete_buckets ? count % run.bucket : 0;
  CodecRun coded = run;
  coded.count = count - rest;
  if (coded.count > 0) add_maxmin(coded, payload);
  if (rest == 0) return;
  CodecRun raw = run;
  raw.value += coded.count;
  raw.sum += coded.count;
  raw.index += coded.count;
  raw.count = rest;
  const uint64_t bytes = codec.encoded_bytes(count, dtype) - rest * size_of(dtype);
  add_raw(raw, dtype, payload + bytes);
}

}  // namespace cgx::gpu
