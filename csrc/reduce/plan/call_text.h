// The texts of errors of collectives, all of them made here:
//
//     cgx: all_reduce number 7 of group 'data', rank 1 of 3: ranks disagree on the collective:
//       rank 1 runs all_reduce SUM of 100 float32 values, 4 bits
//       rank 0 runs all_reduce AVG of 100 float32 values, 4 bits
//
// The first line names the call that the reader has made; the rest is the cause (Failure::text),
// which reads the same on every rank that gets it. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "codec/config.h"
#include "comm/failure.h"

namespace cgx {

/// True for a send or a receive.
bool point_to_point(const CallName& call);

/// Name of a call on its own rank.
struct CallTitle {
  CallName call;
  std::string group;  // empty: without a name
  int rank = 0;
  int size = 1;

  /// "all_reduce number 7 of group 'default_pg', rank 1 of 3"
  std::string text() const;
};

/// The whole text of an error. where: the communicator; seconds: since the call was made. Both are
/// for waits: disagreements omit them, and so does an empty `where`.
std::string error_text(const CallTitle& title, const Failure& failure,
                       const std::string& where = "", double seconds = 0);

/// `text`, of a TimeoutError, and how its limit is raised; as it is where it names a timeout already.
std::string with_limit(std::string text);

/// One rank's side of a disagreement.
struct CallSide {
  int rank = 0;
  std::string call;  // "all_reduce SUM of 100 float32 values, 4 bits"
  /// Further differences of calls: ", buckets of 64", ", one-shot". Both sides have the same
  /// number, in the same order; equal ones are omitted.
  std::vector<std::string> details;
  uint64_t hash = 0;  // of the plan; 0: not known
};

/// The cause of a MismatchError: a line, and one for the call of each rank. hashes: with the hashes
/// of the plans.
std::string disagreement(const CallSide& one, const CallSide& other, bool hashes);

/// " of 100 float32 values"
std::string values_text(uint64_t count, const char* dtype);
/// ", 4 bits", ", exact": of the first compressed layer; 0 bits: no layer is compressed.
std::string bits_text(int bits);
/// ", step 7"
std::string step_text(uint64_t step);

/// Text about the codec of a peer's first compressed layer, from its header.
struct CodecText {
  std::string call;  // as bits_text()
  std::string rest;  // ", maxmin bucket_size=64": shown if two sides have equally many bits
};
/// `family`: 0 if no layer is compressed. `config`: the low half of the configuration's hash. `near`: this
/// rank's configuration, or null. A configuration that differs from it in more than one parameter
/// is shown as its hash.
CodecText codec_text(uint8_t family, uint32_t config, const CodecConfig* near);

}  // namespace cgx
