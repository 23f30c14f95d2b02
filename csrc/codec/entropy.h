// The contract of an entropy coder, the last stage of some compressors.
//
// The core links none: who makes a compressor gives it one. The payloads of `bounded` and
// `cuda_float_compress` hold Zstandard's frames, so other readers take them only if the coder is
// Zstandard (torch_cgx/bounded/_entropy.py). Thread-safety: methods may be called concurrently.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cgx {

/// What a compressor knows of the bytes, for the choice of the coder's level.
struct ContentFacts {
  double entropy = 8;   // estimated bits of a symbol, order ignored
  bool packed = false;  // a byte is four symbols
  /// The frame has to state the number of its content's bytes, and their checksum.
  bool framed = false;
};

class EntropyCoder {
 public:
  virtual ~EntropyCoder() = default;

  /// The most bytes of a frame of so many bytes.
  virtual size_t most_bytes(size_t content) const = 0;

  /// A frame, at most most_bytes() long; empty only where the content is.
  virtual std::vector<std::byte> compress(std::span<const std::byte> content,
                                          const ContentFacts& facts) const = 0;

  /// The content of a frame that somebody else wrote: exactly `size` bytes. ConfigError: it is no frame,
  /// was cut or altered, or holds another number of bytes.
  virtual std::vector<std::byte> decompress(std::span<const std::byte> frame,
                                            size_t size) const = 0;
};

}  // namespace cgx
