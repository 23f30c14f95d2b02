// `rotated`: random rotation of each block, then one Lloyd-Max code a value.
#include "codec/families/rotated/rotated.h"

#include "codec/families/list.h"
#include "codec/families/rotated/loops.h"
#include "codec/rotation/codec.h"

namespace cgx {
namespace {

std::shared_ptr<const Codec> make(const CodecConfig& config) {
  return rotation::make_block_codec(config, rotated::kLoops);
}

}  // namespace

const Family& rotated_family() {
  using Kind = Parameter::Kind;
  static const auto* family = new Family{
      {
          .name = "rotated",
          .meaning = "Random rotation of each block, then the best quantizer of Gaussian values",
          .parameters = rotation::parameters_with({.name = "bits",
                                                   .variable = "CGX_COMPRESSION_QUANTIZATION_BITS",
                                                   .kind = Kind::kInteger,
                                                   .fallback = "4",
                                                   .low = 1,
                                                   .high = 8,
                                                   .per_call = true,
                                                   .meaning = "Bits per value"}),
          .python = "Rotated",
          .doc = "A block of values gets random signs and a Walsh-Hadamard transform, which "
                 "makes its values\nclose to Gaussian whatever they were. Each is then coded "
                 "by the Lloyd-Max quantizer of N(0, 1),\nwith one scale a block. At equal "
                 "bits the error is far below that of ``MaxMin``; docs/numerics.md\nhas "
                 "figures. A block of zeros is exact. A block with a NaN or an Inf decodes to "
                 "NaN and affects\nno other block.",
      },
      {
          .id = kRotatedFamily,
          .make = make,
          .bound = rotation::bound,
          .gpu_runs = rotation::gpu_runs<1>,
      },
  };
  return *family;
}

}  // namespace cgx
