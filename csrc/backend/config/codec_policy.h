// Chooses the codec for the values of a call, from the options in force, the registered layers and
// the hosts of the group, and gives the reason.
//
// Thread-safe; as settings.h says, reading the environment races with setenv() of other threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/config/call_codec.h"
#include "backend/config/notices.h"
#include "backend/config/settings.h"
#include "reduce/plan/plan.h"

namespace cgx {

class CodecPolicy {
 public:
  /// `options` and `config` outlive this object, and do not change. `speaks`: true on the
  /// one rank of the group that warns.
  CodecPolicy(const OptionFields& options, const GroupConfig& config, bool on_one_host,
              bool speaks);

  /// The codec for `numel` values of a call that names none. `compressed`: true if the group
  /// compresses that collective at all.
  std::shared_ptr<const Codec> codec_for(bool compressed, int64_t numel) const;
  /// Layers of an all-reduce that names none.
  std::vector<Layer> layers_for(int64_t numel) const;
  /// The codec of a call that names it: exact inside the host where CGX_INTRA_COMPRESS=0 says so.
  std::shared_ptr<const Codec> allowed_in_group(std::shared_ptr<const Codec> codec) const {
    return exact_on_host() ? raw_codec() : codec;
  }

  /// The reason why a call that names no codec is compressed, or not; empty unless it is logged.
  std::string why(bool compressed, int64_t numel) const;
  /// Warns of a reduction without a configuration of its own, of `bytes` bytes, whose layers are
  /// the group's choice.
  void notice(const char* what, int64_t numel, size_t bytes, const std::vector<Layer>& layers);
  /// Describes, for logs, how reductions are compressed under the present settings.
  std::string describe() const;

 private:
  bool exact_on_host() const { return on_one_host_ && !config_.intra_compress.value_or(true); }

  const OptionFields& options_;
  const GroupConfig& config_;
  const bool on_one_host_;
  mutable CallCodec call_codec_;
  Notices notices_;
};

}  // namespace cgx
