// A family of wire codecs, declared once, and one set of values of its parameters.
//
// All else derives from the declaration: validation, settings and environment variables, the text
// and the hash of a configuration, what travels in headers and handshakes, the Python classes of
// torch_cgx.codecs, Options, stubs and tables (docs/contributing.md, "Adding a codec").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "codec/declaration.h"

namespace cgx {

class Codec;
struct Family;
/// What a user asks of a codec. Equal configurations on two ranks mean equal bytes for equal input.
using CodecConfig = ConfigOf<Family>;
namespace gpu {
class RunTable;
struct CodecRun;
}  // namespace gpu

/// What the declaration of a family makes: a wire codec.
struct CodecMaker {
  static constexpr const char* kWord = "codec";

  uint8_t id;  // on the wire; no number is used again
  std::shared_ptr<const Codec> (*make)(const CodecConfig& config);
  /// limits[i]: what |decoded - x[i]| may be at most, of a run of n finite values that a tensor of
  /// this type holds; from the formulas' statement, in float64.
  void (*bound)(const CodecConfig& config, DType dtype, const float* x, size_t n, double* limits);
  /// Adds the run of `count` values to a table for the GPU's kernels; null: they do not know it.
  void (*gpu_runs)(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
                   DType dtype, uint64_t payload) = nullptr;
  /// Whether a finite run's zeros always come back as zeros, without the setting `exact_zeros`.
  bool keeps_zeros = false;
};

/// Its parameters are integers, booleans and choices, and settings of a group.
struct Family : Declared<CodecMaker> {
  using Declared::Declared;
};

/// All families: first the list of codec/families/list.h, in its order, then the added ones.
const std::vector<const Family*>& families();
/// For tests, before threads use codecs. ConfigError: the number or a name is taken, or a parameter
/// shares its setting with a parameter of another family whose kind, default or variable differs.
void add_family(const Family& family);

/// The family with this number; null if no family has it.
const Family* family_of(uint8_t id);

/// The configuration of a text as describe() writes it. ConfigError.
CodecConfig config_of_text(const std::string& text);

/// Names that users may give, sorted, comma-separated.
std::string codec_names();
/// The defaults under such a name, or "raw". ConfigError, listing the names that exist: no codec
/// has this name.
CodecConfig config_named(const std::string& name);

/// The configuration of the family with that hash (its low 32 bits). Only configurations that
/// differ from `near` in one parameter are tried; null: not found. For errors that name a peer's
/// codec.
std::unique_ptr<CodecConfig> config_of_hash(const Family& family, uint32_t hash,
                                            const CodecConfig& near);

}  // namespace cgx
