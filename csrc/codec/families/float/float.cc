// `float`: values rounded to numbers of a few bits with a sign, an exponent and a mantissa.
//
//   payload   a stream of codes (codec/formats/streams.h), 1 + exponent + mantissa bits each
//
// At 16 bits tensors of 16 bits travel in their own type, exact: rounding would lose bits and save none.
// A NaN or an infinity stays one of both: see docs/numerics.md.
#include "codec/families/float/float.h"

#include "codec/families/float/codec.h"
#include "codec/families/float/parameters.h"
#include "codec/families/list.h"
#include "codec/formats/parameters.h"

namespace cgx {
namespace {

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return rounded::make_codec(config, formats::casting_of(config),
                             static_cast<uint64_t>(config.get("seed")));
}

void bound(const CodecConfig& config, DType dtype, const float* x, size_t n, double* limits) {
  rounded::bound(formats::casting_of(config), dtype, x, n, limits);
}

void gpu_runs(const CodecConfig& config, gpu::RunTable& table, const gpu::CodecRun& run,
              DType dtype, uint64_t payload) {
  rounded::gpu_runs(formats::casting_of(config), table, run, dtype, payload);
}

}  // namespace

const Family& float_family() {
  static const auto* family = new Family{
      {
          .name = "float",
          .meaning = "Values rounded to a sign, an exponent and a mantissa of a few bits",
          .parameters = rounded::parameters(),
          .python = "Float",
          .doc = "A value takes ``1 + exponent + mantissa`` bits, 2 to 8 or 16. No value depends "
                 "on its neighbours, and\nzeros stay zeros. Values beyond the largest number "
                 "become what ``overflow`` says. A NaN or an Inf\nstays not finite, also where "
                 "values saturate: an Inf becomes a NaN in formats without one. At 16 bits\n"
                 "tensors of 16 bits are coded in their own type, exact. ``torch_cgx.emulate`` "
                 "has the same formats as\ncasts.",
      },
      {
          .id = kFloatFamily,
          .make = make,
          .bound = bound,
          .gpu_runs = gpu_runs,
          .keeps_zeros = true,
      },
  };
  return *family;
}

}  // namespace cgx
