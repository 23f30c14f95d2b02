// A family of codecs, declared once, and one set of values of its parameters.
//
// All else derives from the declaration: validation, settings and environment variables, the text
// and the hash of a configuration, what travels in headers and handshakes, the Python classes of
// torch_cgx.codecs, Options, stubs and tables (docs/contributing.md, "Adding a codec").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/parameter.h"

namespace cgx {

class Codec;
class CodecConfig;
namespace gpu {
class RunTable;
struct CodecRun;
}  // namespace gpu

struct Family {
  uint8_t id;                         // on the wire; no number is used again
  std::string name;                   // "maxmin"
  std::string meaning;                // one line, for tables
  std::vector<Parameter> parameters;  // integers, booleans and choices
  /// A choice among the parameters by whose values users name the codec ("bf16"); empty: they name
  /// it by `name`.
  std::string variant{};
  /// Whether users may name it; they may not name the codec of exact values.
  bool named = true;
  /// Class of torch_cgx.codecs, and what its docstring says beside the parameters.
  std::string python{}, doc{};

  std::shared_ptr<const Codec> (*make)(const CodecConfig& config);
  /// limits[i]: what |decoded - x[i]| may be at most, of a run of n finite values that a tensor of
  /// this type holds; from the formulas' statement, in float64.
  void (*bound)(const CodecConfig& config, DType dtype, const float* x, size_t n, double* limits);
  /// Adds the run of `count` values to a table for the GPU's kernels; null: they do not know it.
  void (*gpu_runs)(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
                   DType dtype, uint64_t payload) = nullptr;

  /// ConfigError if no parameter has this name.
  size_t place_of(std::string_view parameter) const;
  bool has(std::string_view parameter) const;
};

/// What a user asks of a codec. Equal configurations on two ranks mean equal bytes for equal input.
/// Value semantics; the family must stay.
class CodecConfig {
 public:
  /// All parameters have their defaults.
  explicit CodecConfig(const Family& family);

  const Family& family() const { return *family_; }
  /// The name for users: "maxmin", "bf16".
  std::string name() const;

  /// The number of a parameter: see number_of() in base/parameter.h. ConfigError if no parameter
  /// has this name.
  int64_t get(std::string_view parameter) const;
  std::string text(std::string_view parameter) const;
  /// ConfigError that names the parameter, the value and what is allowed.
  CodecConfig& set(std::string_view parameter, const std::string& text);
  CodecConfig& set(std::string_view parameter, int64_t number);

  /// "maxmin bits=4 bucket_size=512 rounding=nearest": parameters that can have one value only are
  /// left out. The fourth and later parameters are left out if they have their defaults.
  std::string describe() const;

  /// Hash of the family's number and all parameters: ranks compare it.
  uint64_t hash() const;

  bool operator==(const CodecConfig&) const = default;
  /// By family and parameter, in the order of the declaration.
  const std::vector<int64_t>& numbers() const { return numbers_; }

 private:
  const Family* family_;
  std::vector<int64_t> numbers_;
};

/// All families: first the list of codec/families/list.h, in its order, then the added ones.
const std::vector<const Family*>& families();
/// For tests, before threads use codecs. ConfigError: the number or a name is taken, or a parameter
/// shares its setting with a parameter of another family whose kind, default or variable differs.
void add_family(const Family& family);

/// The family with this number; null if no family has it.
const Family* family_of(uint8_t id);

/// Names that users may give, sorted, comma-separated.
std::string codec_names();
/// The defaults under such a name, or "raw". ConfigError, listing the names that exist: no codec
/// has this name.
CodecConfig config_named(const std::string& name);

/// The configuration that a text of describe() stands for. ConfigError: the text is no such text, or
/// a parameter does not take its value.
CodecConfig config_of_text(const std::string& text);

/// The configuration of the family with that hash (its low 32 bits). Only configurations that
/// differ from `near` in one parameter are tried; null: not found. For errors that name a peer's
/// codec.
std::unique_ptr<CodecConfig> config_of_hash(const Family& family, uint32_t hash,
                                            const CodecConfig& near);

}  // namespace cgx
