#include "codec/families/maxmin/gpu/runs.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "codec/codec.h"
#include "codec/families/maxmin/formulas.h"
#include "codec/families/maxmin/maxmin.h"

namespace cgx::maxmin {
namespace {

using gpu::CodecRun;
using gpu::kGroup;
using gpu::kTile;

/// Values of the smallest bucket that kernels of warps take; the largest is a tile.
constexpr uint32_t kLeastOfWarps = 64;

void add_coded(gpu::RunTable& table, CodecRun run, uint64_t payload) {
  const uint64_t buckets = (run.count + run.bucket - 1) / run.bucket;
  // A single bucket needs no more room than its values.
  if (buckets == 1) run.bucket = (run.count + 7) / 8 * 8;
  run.meta = payload;
  run.codes = payload + buckets * sizeof(MaxMinMeta);
  // Tiles start where a bucket does, and at a whole byte of the codes.
  const uint64_t unit = run.bucket > kTile ? run.bucket : std::lcm(run.bucket, uint64_t{8});
  run.long_buckets = unit > kTile ? 1 : 0;
  run.tile = unit > kTile ? kTile : static_cast<uint32_t>(kTile / unit * unit);
  run.tile_buckets = run.long_buckets ? 0 : static_cast<uint32_t>(run.tile / run.bucket);
  // Exact for places and buckets up to kTile: what is added to 2^22 / bucket, times the place,
  // stays below one.
  const auto narrow = static_cast<uint32_t>(std::min<uint64_t>(run.bucket, kTile));
  run.inverse = ((1u << 22) + narrow - 1) / narrow;
  // Kernels of warps do not look for zeros.
  const bool warps = std::has_single_bit(run.bucket) && run.bucket >= kLeastOfWarps &&
                     run.bucket <= kTile && run.own[2] == 0;
  run.own[1] = warps ? static_cast<uint8_t>(std::countr_zero(run.bucket)) : 0;
  const uint64_t whole = std::max<uint64_t>(run.bucket, gpu::kUnitOfWarp);
  table.append(run, warps ? run.count / whole * whole : 0);
}

}  // namespace

void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
              DType dtype, uint64_t payload) {
  CodecRun coded = run;
  coded.bucket = static_cast<uint64_t>(config.get("bucket_size"));
  coded.bits = static_cast<uint8_t>(config.get("bits"));
  coded.own[0] = config.get("rounding") == static_cast<int64_t>(Rounding::kStochastic) ? 1 : 0;
  coded.own[2] = config.get("exact_zeros") != 0 ? 1 : 0;
  const uint64_t rest = config.get("skip_incomplete_buckets") != 0 ? run.count % coded.bucket : 0;
  coded.count = run.count - rest;
  if (coded.count > 0) add_coded(table, coded, payload);
  if (rest == 0) return;
  CodecRun raw = run;
  raw.value += coded.count;
  raw.sum += coded.count;
  raw.index += coded.count;
  raw.count = rest;
  const uint64_t bytes =
      make_codec(config)->encoded_bytes(run.count, dtype) - rest * size_of(dtype);
  table.add_raw(raw, dtype, payload + bytes);
}

}  // namespace cgx::maxmin
