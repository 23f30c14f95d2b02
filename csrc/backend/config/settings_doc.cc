#include "backend/config/settings_doc.h"

#include <map>
#include <string_view>

#include "base/error.h"

namespace cgx {
namespace {

const std::map<std::string_view, const char*>& meanings() {
  static const std::map<std::string_view, const char*> all = {
      {"bits", "Bits per value; 16: fp32 travels as bf16 or fp16; others above 8: exact"},
      {"half",
       "What 16 bits are: bf16 has fp32's range, fp16 is finer but makes values from 65520 on "
       "infinite"},
      {"bucket_size", "Values that share a minimum and a step (8 bytes)"},
      {"skip_incomplete_buckets", "Send the last numel mod bucket_size values exactly"},
      {"min_size", "Tensors and layers with fewer values are exact; less than 16 counts as 16"},
      {"codec",
       "Name of the codec; bf16 and fp16 need `bits` 16, which chooses one of them anyway"},
      {"rounding", "Rounding of values to levels"},
      {"seed", "Of stochastic rounding"},
      {"nonfinite", "NaN and Inf: make their bucket NaN everywhere, or raise on all ranks"},
      {"collectives", "What the group's `bits` apply to"},
      {"inner_communicator", "CommunicatorKind inside a host; NCCL: of CUDA tensors"},
      {"cross_communicator",
       "CommunicatorKind between hosts; AUTO: Gloo, for CUDA tensors NCCL where torch has it"},
      {"cuda_backend",
       "Who carries CUDA tensors that the engine does not reduce; AUTO: NCCL where torch has it"},
      {"inner_reduction", "Algorithm of a group on one host"},
      {"cross_reduction", "Algorithm between hosts"},
      {"intra_broadcast",
       "1: only one rank of a host talks to other hosts; 0: as many as the smallest host has"},
      {"intra_compress",
       "Compress inside hosts? AUTO: in groups on one host yes; below a reduction between hosts "
       "only if the inside is not SHM"},
      {"fusion_buffer_mb",
       "Most bytes of one exchange over Gloo or MPI, in MiB; a longer bucket travels alone"},
      {"shm_segment_kb", "The same over shared memory, in KiB; `/dev/shm` holds two per rank"},
      {"segment_kb",
       "Bytes of one message between hosts that is aimed at, in KiB: while one travels the next "
       "is encoded"},
      {"checksum", "A CRC-32C after every message of the engine; an altered one is an error"},
      {"autotune",
       "Send with more bits than asked, up to exact, where that is faster; measured on the "
       "group's link"},
      {"log",
       "Lines on stderr: info, one per group; debug, one per call: which backend ran it, and why"},
      {"host_id", "Ranks with different values count as on different hosts"},
  };
  return all;
}

const char* type_of(const Setting& setting) {
  switch (setting.kind) {
    case Setting::Kind::kInteger:
      return "int";
    case Setting::Kind::kBoolean:
      return "bool";
    case Setting::Kind::kSwitch:
      return "bool or 'AUTO'";
    case Setting::Kind::kList:
      return "str or sequence of str";
    case Setting::Kind::kChoice:
    case Setting::Kind::kText:
      break;
  }
  return "str";
}

std::string default_of(const Setting& setting) {
  switch (setting.kind) {
    case Setting::Kind::kInteger:
      return setting.fallback;
    case Setting::Kind::kBoolean:
      return std::string_view(setting.fallback) == "1" ? "True" : "False";
    default:
      return str_of("'", setting.fallback, "'");
  }
}

// Where the type does not say it.
std::string allowed_of(const Setting& setting) {
  const bool told = setting.kind == Setting::Kind::kBoolean ||
                    setting.kind == Setting::Kind::kSwitch || setting.kind == Setting::Kind::kText;
  return told ? "" : ", " + allowed(setting);
}

}  // namespace

const char* meaning_of(const Setting& setting) {
  const auto found = meanings().find(setting.name);
  return found == meanings().end() ? "" : found->second;
}

std::string options_doc() {
  std::string text =
      "Settings of a cgx group: `pg_options` of init_process_group and new_group.\n\n"
      "    Options(bits=4, bucket_size=1024)\n\n"
      "All are keywords, and None is as if it were not there: the environment variable then "
      "counts, "
      "else\nthe default. Those that are read at each call may change between calls, on all ranks "
      "alike. ValueError\nand TypeError name a bad value and what is allowed. Immutable and "
      "hashable.\n";
  for (const Setting& s : settings()) {
    text += str_of("\n", s.name, ": ", type_of(s), allowed_of(s), "; default ", default_of(s),
                   "\n    ", meaning_of(s), ".\n    ", s.variable, ", read ",
                   s.per_call ? "at each call" : "when the group is made", ".\n");
  }
  return text;
}

}  // namespace cgx
