// Codes of 1 to 8 bits, a byte each, to a stream of bits. Included by simd-inl.h.

/// Codes that are collected before they are packed.
constexpr size_t kSinkCodes = 1024;

/// Packs as many codes as a level has its own loops for; returns how many.
template <typename Packer>
static inline CGX_INLINE size_t pack_many(const Packer& pack, const uint8_t* codes, size_t n,
                                          std::byte* out, const std::byte* end) {
  if constexpr (requires { pack.many(codes, n, out, end); }) return pack.many(codes, n, out, end);
  return 0;
}

/// Collects codes and packs them.
struct Sink {
  std::byte* out;
  std::byte* end;
  int bits;
  Pack pack;
  size_t fill = 0;
  alignas(64) uint8_t codes[kSinkCodes + kPackCodes + kLanes];

  Sink(std::byte* begin, size_t n, int width)
      : out(begin),
        end(begin + (n * static_cast<size_t>(width) + 7) / 8),
        bits(width),
        pack(width % 8) {}

  /// Memory into which vectors may write n codes directly, with room for what they write behind
  /// them; null where the codes have to go through `codes`.
  uint8_t* whole_bytes(size_t n) {
    if (bits != 8 || fill != 0 || static_cast<size_t>(end - out) < n + kLanes) return nullptr;
    uint8_t* at = reinterpret_cast<uint8_t*>(out);
    out += n;
    return at;
  }

  inline CGX_INLINE void flush() {
    if (bits == 8) {
      __builtin_memcpy(out, codes, fill);
      out += fill;
    } else {
      // What follows the last code must be 0 in the last byte.
      for (size_t i = 0; i < kPackCodes; ++i) codes[fill + i] = 0;
      const size_t step = kPackCodes / 8 * static_cast<size_t>(bits);
      size_t i = pack_many(pack, codes, fill, out, end);
      out += i / 8 * static_cast<size_t>(bits);
      for (; i < fill && static_cast<size_t>(end - out) >= step + 16; i += kPackCodes) {
        pack(codes + i, out);
        out += step;
      }
      for (; i < fill; i += kPackCodes) {
        std::byte part[kPackCodes + 16];
        pack(codes + i, part);
        const size_t bytes = smaller(step, static_cast<size_t>(end - out));
        __builtin_memcpy(out, part, bytes);
        out += bytes;
      }
    }
    fill = 0;
  }
};
