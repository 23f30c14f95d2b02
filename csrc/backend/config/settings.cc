#include "backend/config/settings.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "reduce/plan/choose.h"

namespace cgx {
namespace {

using Kind = Parameter::Kind;

// Smallest tensor that is ever compressed, whatever CGX_COMPRESSION_MINIMAL_SIZE says.
constexpr int64_t kFloorOfMinSize = 16;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

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

LogLevel log_level_of(const std::string& value) {
  if (value == "off") return LogLevel::kOff;
  if (value == "info") return LogLevel::kInfo;
  return value == "debug" ? LogLevel::kDebug : LogLevel::kWarn;
}

// Those of a group that are not a codec's.
std::vector<Setting> group_settings() {
  return {
      {{.name = "min_size",
        .variable = "CGX_COMPRESSION_MINIMAL_SIZE",
        .kind = Kind::kInteger,
        .fallback = "16",
        .low = 0,
        .high = kMaxInt64,
        .meaning = "Tensors and layers with fewer values are exact; at least 16"}},
      {{.name = "nonfinite",
        .variable = "CGX_NONFINITE",
        .kind = Kind::kChoice,
        .fallback = "propagate",
        .choices = "propagate,raise",
        .meaning = "NaN and Inf: propagate makes their bucket NaN on all ranks; raise is an error "
                   "on all ranks"}},
      {{.name = "collectives",
        .variable = "CGX_COMPRESS_COLLECTIVES",
        .kind = Kind::kList,
        .fallback = "all_reduce,reduce_scatter",
        .choices = "all_reduce,reduce_scatter,all_gather",
        .meaning = "Collectives that the group's `bits` apply to"}},
      {{.name = "inner_communicator",
        .variable = "CGX_INNER_COMMUNICATOR_TYPE",
        .kind = Kind::kChoice,
        .fallback = "SHM",
        .choices = "SHM,MPI,NCCL,GLOO",
        .meaning = "Communicator inside a host; NCCL applies to CUDA tensors only"}},
      {{.name = "cross_communicator",
        .variable = "CGX_CROSS_COMMUNICATOR_TYPE",
        .kind = Kind::kChoice,
        .fallback = "AUTO",
        .choices = "AUTO,MPI,NCCL,GLOO",
        .meaning =
            "Communicator between hosts. AUTO: Gloo; for CUDA tensors NCCL if torch has it"}},
      {{.name = "cuda_backend",
        .variable = "CGX_CUDA_BACKEND",
        .kind = Kind::kChoice,
        .fallback = "AUTO",
        .choices = "AUTO,NCCL,GLOO",
        .meaning = "Backend of CUDA collectives that the engine does not run. AUTO: NCCL if "
                   "torch has it, else Gloo"}},
      {{.name = "inner_reduction",
        .variable = "CGX_INNER_REDUCTION_TYPE",
        .kind = Kind::kChoice,
        .fallback = "AUTO",
        .choices = kReductions,
        .meaning = "Algorithm of a group on one host"}},
      {{.name = "cross_reduction",
        .variable = "CGX_CROSS_REDUCTION_TYPE",
        .kind = Kind::kChoice,
        .fallback = "AUTO",
        .choices = kReductions,
        .meaning = "Algorithm between hosts"}},
      {{.name = "intra_broadcast",
        .variable = "CGX_INTRA_BROADCAST",
        .kind = Kind::kBoolean,
        .fallback = "0",
        .meaning = "1: one rank of each host communicates with other hosts; 0: as many ranks as "
                   "the smallest host has"}},
      {{.name = "intra_compress",
        .variable = "CGX_INTRA_COMPRESS",
        .kind = Kind::kSwitch,
        .fallback = "AUTO",
        .meaning = "Whether to compress inside hosts. AUTO compresses if the whole group is on one "
                   "host, or if the ranks of a host do not share memory"}},
      {{.name = "fusion_buffer_mb",
        .variable = "CGX_FUSION_BUFFER_SIZE_MB",
        .kind = Kind::kInteger,
        .fallback = "64",
        .low = 1,
        .high = 65536,
        .meaning = "Largest size of one exchange over Gloo or MPI, in MiB; a longer bucket travels "
                   "alone"}},
      {{.name = "shm_segment_kb",
        .variable = "CGX_SHM_SEGMENT_KB",
        .kind = Kind::kInteger,
        .fallback = "1024",
        .low = 16,
        .high = 1048576,
        .meaning =
            "Largest size of one exchange over shared memory, in KiB; `/dev/shm` holds up to "
            "two such blocks per rank"}},
      {{.name = "segment_kb",
        .variable = "CGX_SEGMENT_KB",
        .kind = Kind::kInteger,
        .fallback = "512",
        .low = 1,
        .high = 1048576,
        .meaning = "Target size of one message between hosts, in KiB: while one travels, the next "
                   "is encoded"}},
      {{.name = "checksum",
        .variable = "CGX_CHECKSUM",
        .kind = Kind::kBoolean,
        .fallback = "0",
        .meaning =
            "1: a CRC-32C follows every message of the engine; an altered message is an error"}},
      {{.name = "autotune",
        .variable = "CGX_AUTOTUNE",
        .kind = Kind::kBoolean,
        .fallback = "0",
        .meaning = "1: send more bits than asked, up to exact, where this is faster; measured on "
                   "the group's link"}},
      {{.name = "log",
        .variable = "CGX_LOG",
        .kind = Kind::kChoice,
        .fallback = "warn",
        .choices = "off,warn,info,debug",
        .meaning = "Lines on stderr: info logs each group; debug logs each call with the "
                   "communicator used and the reason"},
       false},
      {{.name = "host_id",
        .variable = "CGX_HOST_ID",
        .kind = Kind::kText,
        .meaning = "Ranks with different values count as on different hosts"},
       false},
  };
}

std::vector<Setting> collect() {
  std::vector<Setting> all;
  for (const Parameter& parameter : codec_settings()) all.push_back({parameter});
  for (Setting& own : group_settings()) all.push_back(std::move(own));
  return all;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const auto* table = new std::vector<Setting>(collect());
  return *table;
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
  for (const Parameter& p : codec_settings()) {
    if (!p.per_call) group.codec_settings[p.name] = get(options, p.name.c_str());
  }
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
  group.intra = communicator_kind_of(get(options, "inner_communicator"));
  const std::string cross = get(options, "cross_communicator");
  group.cross = communicator_kind_of(cross);
  group.cross_is_automatic = cross == "AUTO";
  group.cuda_backend = get(options, "cuda_backend");
  group.intra_reduction = get(options, "inner_reduction");
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

namespace {

std::shared_ptr<const Codec> codec_at(const std::string& bits, const OptionFields& options,
                                      const GroupConfig& group) {
  return choose_codec([&](const std::string& name) {
    if (name == "bits") return bits;
    const auto fixed = group.codec_settings.find(name);
    return fixed != group.codec_settings.end() ? fixed->second : get(options, name.c_str());
  });
}

}  // namespace

std::shared_ptr<const Codec> resolve_codec(const OptionFields& options, const GroupConfig& group) {
  return codec_at(get(options, "bits"), options, group);
}

std::shared_ptr<const Codec> usual_codec(const OptionFields& options, const GroupConfig& group) {
  auto codec = resolve_codec(options, group);
  return codec != raw_codec() ? codec : codec_at(std::to_string(kMostBits), options, group);
}

EngineOptions engine_options(const GroupConfig& group, const Topology& topology) {
  EngineOptions options;
  options.intra_reduction = reduction_of("inner_reduction", group.intra_reduction);
  options.cross_reduction = reduction_of("cross_reduction", group.cross_reduction);
  options.nonfinite = group.nonfinite;
  options.checksum = group.checksum;
  options.tell_hashes = group.log == LogLevel::kDebug;
  // Equal rounds whatever the communicator: equal bits.
  options.intra.wanted = group.shm_segment_bytes;
  options.intra.most = group.intra == CommunicatorKind::kShm
                           ? group.shm_segment_bytes
                           : std::max(group.shm_segment_bytes, group.fusion_buffer_bytes);
  options.segment_bytes = group.segment_bytes;
  options.cross_bytes = group.fusion_buffer_bytes;
  // Shared memory is faster than the codec; other communicators inside a host may not be.
  options.intra_exact =
      group.intra_compress ? !*group.intra_compress : group.intra == CommunicatorKind::kShm;
  const bool on_one_host = topology.host_count() == 1;
  const CommunicatorKind only = on_one_host ? group.intra : group.cross;
  if (!topology.two_levels() && only == CommunicatorKind::kGloo) options.direct_from = kDirectFrom;
  const bool halves = options.intra_reduction == Reduction::kAuto ||
                      options.intra_reduction == Reduction::kScatterReduceAllGather;
  if (topology.two_levels() && !halves) {
    throw ConfigError(str_of(
        "CGX_INNER_REDUCTION_TYPE='", group.intra_reduction, "': this group spans ",
        topology.host_count(), " hosts with several ranks on one, whose ranks reduce-scatter ",
        "before and all-gather after the reduction across hosts; that is AUTO or SRA, while ",
        group.intra_reduction, " is for groups on one host (CGX_CROSS_REDUCTION_TYPE takes it)"));
  }
  return options;
}

namespace {

// The allowed values, if the Python type does not show them.
std::string allowed_of(const Setting& setting) {
  const bool told = setting.kind == Kind::kBoolean || setting.kind == Kind::kSwitch ||
                    setting.kind == Kind::kText;
  return told ? "" : ", " + allowed(setting);
}

}  // namespace

std::string options_doc() {
  std::string text =
      "Settings of a cgx group: `pg_options` of init_process_group and new_group.\n\n"
      "    Options(bits=4, bucket_size=1024)\n\n"
      "All arguments are keywords. None counts as absent: the environment variable applies, else "
      "the default.\nSettings that are read at each call may change between calls, on all ranks at "
      "the same call. ValueError\nand TypeError name a bad value and what is allowed. Immutable "
      "and "
      "hashable.\n";
  for (const Setting& s : settings()) {
    text += str_of("\n", s.name, ": ", python_type(s), allowed_of(s), "; default ",
                   python_default(s), "\n    ", s.meaning, ".\n    ", s.variable, ", read ",
                   s.per_call ? "at each call" : "when the group is made", ".\n");
  }
  return text;
}

std::map<std::string, std::string> compared_settings(const OptionFields& options) {
  std::map<std::string, std::string> values;
  for (const Setting& s : settings()) {
    if (s.compared) values[s.name] = lookup(options, s);
  }
  return values;
}

}  // namespace cgx
