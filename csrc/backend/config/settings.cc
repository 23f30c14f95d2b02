#include "backend/config/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "base/error.h"

namespace cgx {
namespace {

using Kind = Setting::Kind;

// Smallest tensor that is ever compressed, whatever CGX_COMPRESSION_MINIMAL_SIZE says.
constexpr int64_t kFloorOfMinSize = 16;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string strip(const std::string& text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    size_t comma = std::min(text.find(',', start), text.size());
    std::string part = strip(text.substr(start, comma - start));
    if (!part.empty()) parts.push_back(part);
    start = comma + 1;
  }
  return parts;
}

std::string choices_of(const Setting& setting) {
  return *setting.choices == '\0' ? codec_names() : setting.choices;
}

[[noreturn]] void bad_value(const Setting& setting, const std::string& where,
                            const std::string& value) {
  throw ConfigError(
      str_of(where, "='", value, "' is not allowed; ", setting.name, " takes ", allowed(setting)));
}

// The choice that equals `value` whatever the case, or empty.
std::string match(const std::string& value, const std::string& choices) {
  for (const std::string& choice : split(choices)) {
    if (upper(choice) == upper(value)) return choice;
  }
  return "";
}

// The canonical text of a valid value; ConfigError otherwise.
std::string canonical(const Setting& setting, const std::string& where, const std::string& raw) {
  const std::string value = strip(raw);
  switch (setting.kind) {
    case Kind::kInteger: {
      int64_t number = 0;
      auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc() || end != value.data() + value.size() || number < setting.low ||
          number > setting.high) {
        bad_value(setting, where, raw);
      }
      return std::to_string(number);
    }
    case Kind::kBoolean:
      if (value != "0" && value != "1") bad_value(setting, where, raw);
      return value;
    case Kind::kSwitch: {
      std::string choice = match(value, "0,1,AUTO");
      if (choice.empty()) bad_value(setting, where, raw);
      return choice;
    }
    case Kind::kChoice: {
      std::string choice = match(value, choices_of(setting));
      if (choice.empty()) bad_value(setting, where, raw);
      return choice;
    }
    case Kind::kList: {
      if (upper(value) == "NONE") return "none";
      std::vector<std::string> parts;
      for (const std::string& part : split(value)) {
        std::string choice = match(part, choices_of(setting));
        if (choice.empty()) bad_value(setting, where, raw);
        parts.push_back(choice);
      }
      if (parts.empty()) bad_value(setting, where, raw);
      std::sort(parts.begin(), parts.end());
      std::string text;
      for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
      return text;
    }
    case Kind::kText:
      break;
  }
  return raw;
}

std::optional<std::string> from_environment(const Setting& setting) {
  const char* value = std::getenv(setting.variable);
  if (value == nullptr || *value == '\0') return std::nullopt;  // VAR= in a shell means "unset"
  return canonical(setting, setting.variable, value);
}

std::string get(const OptionFields& options, const char* name) {
  return lookup(options, setting(name));
}

int64_t get_integer(const OptionFields& options, const char* name) {
  return std::stoll(get(options, name));
}

CommunicatorKind communicator_kind_of(const std::string& value) {
  if (value == "SHM") return CommunicatorKind::kShm;
  if (value == "MPI") return CommunicatorKind::kMpi;
  if (value == "NCCL") return CommunicatorKind::kNccl;
  return CommunicatorKind::kGloo;
}

Reduction reduction_of(const std::string& value) {
  if (value == "SRA") return Reduction::kScatterReduceAllGather;
  if (value == "ONESHOT") return Reduction::kOneShot;
  return value == "RING" ? Reduction::kRing : Reduction::kAuto;
}

LogLevel log_level_of(const std::string& value) {
  if (value == "off") return LogLevel::kOff;
  if (value == "info") return LogLevel::kInfo;
  return value == "debug" ? LogLevel::kDebug : LogLevel::kWarn;
}

}  // namespace

const std::vector<Setting>& settings() {
  // clang-format off
  static const std::vector<Setting> table = {
      {"bits", "CGX_COMPRESSION_QUANTIZATION_BITS", Kind::kInteger, "32", 1, 32, "", true, true},
      {"half", "CGX_HALF", Kind::kChoice, "bf16", 0, 0, "bf16,fp16", true, true},
      {"bucket_size", "CGX_COMPRESSION_BUCKET_SIZE", Kind::kInteger, "512", 1, kMaxInt32, "", true, true},
      {"skip_incomplete_buckets", "CGX_COMPRESSION_SKIP_INCOMPLETE_BUCKETS", Kind::kBoolean, "0", 0, 1, "", true, true},
      {"min_size", "CGX_COMPRESSION_MINIMAL_SIZE", Kind::kInteger, "16", 0, kMaxInt64, "", false, true},
      {"codec", "CGX_COMPRESSION_TYPE", Kind::kChoice, "maxmin", 0, 0, "", false, true},
      {"rounding", "CGX_COMPRESSION_ROUNDING", Kind::kChoice, "nearest", 0, 0, "nearest,stochastic", false, true},
      {"seed", "CGX_COMPRESSION_SEED", Kind::kInteger, "0", 0, kMaxInt64, "", false, true},
      {"nonfinite", "CGX_NONFINITE", Kind::kChoice, "propagate", 0, 0, "propagate,raise", false, true},
      {"collectives", "CGX_COMPRESS_COLLECTIVES", Kind::kList, "all_reduce,reduce_scatter", 0, 0, "all_reduce,reduce_scatter,all_gather", false, true},
      {"inner_communicator", "CGX_INNER_COMMUNICATOR_TYPE", Kind::kChoice, "SHM", 0, 0, "SHM,MPI,NCCL,GLOO", false, true},
      {"cross_communicator", "CGX_CROSS_COMMUNICATOR_TYPE", Kind::kChoice, "AUTO", 0, 0, "AUTO,MPI,NCCL,GLOO", false, true},
      {"cuda_backend", "CGX_CUDA_BACKEND", Kind::kChoice, "AUTO", 0, 0, "AUTO,NCCL,GLOO", false, true},
      {"inner_reduction", "CGX_INNER_REDUCTION_TYPE", Kind::kChoice, "AUTO", 0, 0, "AUTO,SRA,ONESHOT,RING", false, true},
      {"cross_reduction", "CGX_CROSS_REDUCTION_TYPE", Kind::kChoice, "AUTO", 0, 0, "AUTO,SRA,ONESHOT,RING", false, true},
      {"intra_broadcast", "CGX_INTRA_BROADCAST", Kind::kBoolean, "0", 0, 1, "", false, true},
      {"intra_compress", "CGX_INTRA_COMPRESS", Kind::kSwitch, "AUTO", 0, 0, "", false, true},
      {"fusion_buffer_mb", "CGX_FUSION_BUFFER_SIZE_MB", Kind::kInteger, "64", 1, 65536, "", false, true},
      {"shm_segment_kb", "CGX_SHM_SEGMENT_KB", Kind::kInteger, "1024", 16, 1048576, "", false, true},
      {"segment_kb", "CGX_SEGMENT_KB", Kind::kInteger, "512", 1, 1048576, "", false, true},
      {"checksum", "CGX_CHECKSUM", Kind::kBoolean, "0", 0, 1, "", false, true},
      {"autotune", "CGX_AUTOTUNE", Kind::kBoolean, "0", 0, 1, "", false, true},
      {"log", "CGX_LOG", Kind::kChoice, "warn", 0, 0, "off,warn,info,debug", false, false},
      {"host_id", "CGX_HOST_ID", Kind::kText, "", 0, 0, "", false, false},
  };
  // clang-format on
  return table;
}

std::string allowed(const Setting& setting) {
  switch (setting.kind) {
    case Kind::kInteger:
      return str_of("integers from ", setting.low, " to ", setting.high);
    case Kind::kBoolean:
      return "0 or 1";
    case Kind::kSwitch:
      return "0, 1 or AUTO";
    case Kind::kChoice:
      return "one of " + choices_of(setting);
    case Kind::kList:
      return "a comma-separated list (or 'none') of " + choices_of(setting);
    case Kind::kText:
      break;
  }
  return "any text";
}

const Setting& setting(const std::string& name) {
  std::string known;
  for (const Setting& candidate : settings()) {
    if (name == candidate.name) return candidate;
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
  }
  throw ConfigError(str_of("unknown option '", name, "'; torch_cgx.Options takes ", known));
}

void OptionFields::set(const std::string& name, const std::string& value) {
  fields_[name] = canonical(setting(name), name, value);
}

std::optional<std::string> OptionFields::get(const std::string& name) const {
  auto found = fields_.find(name);
  return found == fields_.end() ? std::nullopt : std::optional<std::string>(found->second);
}

std::string lookup(const OptionFields& options, const Setting& setting) {
  if (auto value = options.get(setting.name)) return *value;
  if (auto value = from_environment(setting)) return *value;
  return setting.fallback;
}

bool is_given(const OptionFields& options, const char* name) {
  return options.get(name) || from_environment(setting(name));
}

GroupConfig resolve_group(const OptionFields& options) {
  GroupConfig group;
  group.codec = get(options, "codec");
  group.rounding =
      get(options, "rounding") == "stochastic" ? Rounding::kStochastic : Rounding::kNearest;
  group.seed = static_cast<uint64_t>(get_integer(options, "seed"));
  group.min_size = static_cast<size_t>(std::max(kFloorOfMinSize, get_integer(options, "min_size")));
  group.nonfinite =
      get(options, "nonfinite") == "raise" ? NonFinite::kRaise : NonFinite::kPropagate;
  const std::vector<std::string> collectives = split(get(options, "collectives"));
  auto listed = [&](const char* name) {
    return std::find(collectives.begin(), collectives.end(), name) != collectives.end();
  };
  group.compress_all_reduce = listed("all_reduce");
  group.compress_reduce_scatter = listed("reduce_scatter");
  group.compress_all_gather = listed("all_gather");
  group.inner = communicator_kind_of(get(options, "inner_communicator"));
  const std::string cross = get(options, "cross_communicator");
  group.cross = communicator_kind_of(cross);
  group.cross_is_automatic = cross == "AUTO";
  group.cuda_backend = get(options, "cuda_backend");
  group.inner_reduction = get(options, "inner_reduction");
  group.cross_reduction = get(options, "cross_reduction");
  group.fusion_buffer_bytes = static_cast<size_t>(get_integer(options, "fusion_buffer_mb")) << 20;
  group.shm_segment_bytes = static_cast<size_t>(get_integer(options, "shm_segment_kb")) << 10;
  group.segment_bytes = static_cast<size_t>(get_integer(options, "segment_kb")) << 10;
  group.leader_only = get(options, "intra_broadcast") == "1";
  const std::string compress = get(options, "intra_compress");
  if (compress != "AUTO") group.intra_compress = compress == "1";
  group.checksum = get(options, "checksum") == "1";
  group.autotune = get(options, "autotune") == "1";
  group.log = log_level_of(get(options, "log"));
  group.host_id = get(options, "host_id");
  for (const Setting& s : settings()) lookup(options, s);  // bad per-call values are refused early
  resolve_codec(options, group);                           // and bits that the codec does not have
  return group;
}

int64_t bits_in_force(const OptionFields& options) { return get_integer(options, "bits"); }

std::shared_ptr<const Codec> resolve_codec(const OptionFields& options, const GroupConfig& group) {
  const int64_t bits = bits_in_force(options);
  if (is_exact(bits)) return raw_codec();
  CodecSpec spec;
  spec.name = bits == 16 && group.codec == "maxmin" ? get(options, "half") : group.codec;
  spec.bits = static_cast<int>(bits);
  spec.bucket_size = get_integer(options, "bucket_size");
  spec.rounding = group.rounding;
  spec.skip_incomplete_buckets = get(options, "skip_incomplete_buckets") == "1";
  spec.seed = group.seed;
  return make_codec(spec);
}

EngineOptions engine_options(const GroupConfig& group, const Topology& topology) {
  EngineOptions options;
  options.inner_reduction = reduction_of(group.inner_reduction);
  options.cross_reduction = reduction_of(group.cross_reduction);
  options.nonfinite = group.nonfinite;
  options.checksum = group.checksum;
  options.tell_hashes = group.log == LogLevel::kDebug;
  // Equal rounds whatever the communicator: equal bits.
  options.inner.wanted = group.shm_segment_bytes;
  options.inner.most = group.inner == CommunicatorKind::kShm
                           ? group.shm_segment_bytes
                           : std::max(group.shm_segment_bytes, group.fusion_buffer_bytes);
  options.segment_bytes = group.segment_bytes;
  options.cross_bytes = group.fusion_buffer_bytes;
  // Shared memory is faster than the codec; other communicators inside a host may not be.
  options.inner_exact =
      group.intra_compress ? !*group.intra_compress : group.inner == CommunicatorKind::kShm;
  const bool on_one_host = topology.host_count() == 1;
  const CommunicatorKind only = on_one_host ? group.inner : group.cross;
  if (!topology.two_levels() && only == CommunicatorKind::kGloo) options.direct_from = kDirectFrom;
  const bool halves = options.inner_reduction == Reduction::kAuto ||
                      options.inner_reduction == Reduction::kScatterReduceAllGather;
  if (topology.two_levels() && !halves) {
    throw ConfigError(str_of(
        "CGX_INNER_REDUCTION_TYPE='", group.inner_reduction, "': this group spans ",
        topology.host_count(), " hosts with several ranks on one, whose ranks reduce-scatter ",
        "before and all-gather after the reduction across hosts; that is AUTO or SRA, while ",
        group.inner_reduction, " is for groups on one host (CGX_CROSS_REDUCTION_TYPE takes it)"));
  }
  return options;
}

std::map<std::string, std::string> compared_settings(const OptionFields& options) {
  std::map<std::string, std::string> values;
  for (const Setting& s : settings()) {
    if (s.compared) values[s.name] = lookup(options, s);
  }
  return values;
}

}  // namespace cgx
