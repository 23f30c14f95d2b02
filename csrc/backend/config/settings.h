// The configuration of a group: every option and its environment variable, in one table.
//
// A value is taken from torch_cgx.Options if given there, else from the environment, else the
// default. Bits, bucket size and skip are looked up at each call on the caller's thread (old
// scripts change the variables between calls), all others when the group is made. A bad value is a
// ConfigError that names the variable or option, the value and what is allowed. Thread-safety:
// reading the environment races with setenv() of other threads, as getenv() does.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/parameter.h"
#include "codec/choice.h"
#include "reduce/engine.h"

namespace cgx {

struct Setting : Parameter {
  bool compared = true;  // must be equal on all ranks
};

/// All settings, in the order of tables: the settings of the codecs (codec/choice.h) come first.
const std::vector<Setting>& settings();
/// ConfigError that lists the known names.
const Setting& setting(const std::string& name);

/// The options that the user gave explicitly. Validated on set(); value semantics.
class OptionFields {
 public:
  void set(const std::string& name, const std::string& value);
  std::optional<std::string> get(const std::string& name) const;
  const std::map<std::string, std::string>& all() const { return fields_; }
  bool operator==(const OptionFields&) const = default;

 private:
  std::map<std::string, std::string> fields_;
};

/// The docstring of torch_cgx.Options.
std::string options_doc();

/// Canonical text of one setting: option, else environment, else default.
std::string lookup(const OptionFields& options, const Setting& setting);

/// True if an option or its environment variable gives the value, so that it is not the default.
bool is_given(const OptionFields& options, const char* name);

enum class CommunicatorKind { kShm, kGloo, kMpi, kNccl };

/// Settings of a group that do not change after it was made.
struct GroupConfig {
  /// Canonical texts of the codecs' settings that are not read at each call, by name.
  std::map<std::string, std::string> codec_settings;
  size_t min_size = 16;
  NonFinite nonfinite = NonFinite::kPropagate;
  bool compress_all_reduce = true, compress_reduce_scatter = true, compress_all_gather = false;
  CommunicatorKind intra = CommunicatorKind::kShm, cross = CommunicatorKind::kGloo;
  bool cross_is_automatic = true;  // NCCL for CUDA tensors, where torch has it
  std::string cuda_backend;        // for calls that the engine does not take
  std::string intra_reduction, cross_reduction;
  size_t fusion_buffer_bytes = 0;
  size_t shm_segment_bytes = 0;
  size_t segment_bytes = 0;
  bool leader_only = false;            // CGX_INTRA_BROADCAST
  std::optional<bool> intra_compress;  // none: by the kind of group
  bool checksum = false;
  bool autotune = false;
  LogLevel log = LogLevel::kWarn;
  std::string host_id;
};

GroupConfig resolve_group(const OptionFields& options);

/// Bits of a call now, on the caller's thread.
int64_t bits_in_force(const OptionFields& options);

/// Codec of a call on the caller's thread; raw_codec() where is_exact(bits).
std::shared_ptr<const Codec> resolve_codec(const OptionFields& options, const GroupConfig& group);

/// A codec as calls of the group with bits of their own may use it: the group's, or, where that is
/// exact, the same at 8 bits.
std::shared_ptr<const Codec> usual_codec(const OptionFields& options, const GroupConfig& group);

/// Options of the engine for a group on these hosts. ConfigError for an impossible choice.
EngineOptions engine_options(const GroupConfig& group, const Topology& topology);

/// key=value of all settings that ranks must agree on, for the handshake.
std::map<std::string, std::string> compared_settings(const OptionFields& options);

}  // namespace cgx
