#include "codec/compressor.h"

#include "base/error.h"
#include "codec/compressors/list.h"

namespace cgx {
namespace {

DeclarationList<CompressorFamily>& compressor_list() {
  // Never destroyed: threads may compress while the process ends.
  static auto* all = [] {
    auto* made = new DeclarationList<CompressorFamily>;
#define CGX_COMPRESSOR(name) made->add(name##_compressor());
    CGX_COMPRESSORS(CGX_COMPRESSOR)
#undef CGX_COMPRESSOR
    return made;
  }();
  return *all;
}

}  // namespace

size_t Compressor::most_bytes(size_t n, DType dtype) const {
  check_dtype(describe() + ": x", dtype, dtypes());
  return most_payload(n, dtype);
}

size_t Compressor::compress(const void* x, size_t n, DType dtype, std::span<std::byte> out) const {
  const size_t most = most_bytes(n, dtype);
  if (out.size() < most) {
    throw ConfigError(str_of(describe(), ": out has ", out.size(), " bytes, allowed for ", n, " ",
                             name_of(dtype), " values: ", most, " or more"));
  }
  return write(x, n, dtype, out);
}

void Compressor::decompress(std::span<const std::byte> payload, void* y, size_t n,
                            DType dtype) const {
  const PayloadInfo found = info(payload);
  if (found.dtype != dtype || found.count != n) {
    throw ConfigError(str_of(describe(), ": y has ", n, " ", name_of(dtype),
                             " values, but the payload holds ", found.count, " of ",
                             name_of(found.dtype)));
  }
  read(payload, found, y);
}

const DeclarationList<CompressorFamily>& compressors() { return compressor_list(); }

void add_compressor(const CompressorFamily& family) { compressor_list().add(family); }

std::shared_ptr<const Compressor> make_compressor(const CompressorConfig& config,
                                                  std::shared_ptr<const EntropyCoder> entropy) {
  if (config.family().needs_entropy && entropy == nullptr) {
    throw ConfigError(str_of("compressor ", config.name(),
                             " needs an entropy coder: its format has no payload "
                             "without one"));
  }
  return config.family().make(config, std::move(entropy));
}

}  // namespace cgx
