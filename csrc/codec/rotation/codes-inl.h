// The codes of whole blocks in a payload, over the vector operations of one level. Included by
// blocks-inl.h.

#if defined(CGX_ON_AVX2)
/// Codes of whole blocks go to the payload at once. Stores may reach behind them, so the last
/// block's codes take another way.
template <int bits>
struct Codes {
  const Pack pack{bits % 8};
  std::byte *out, *end;
  Codes(std::byte* begin, size_t n) : out(begin), end(begin + n / 8 * bits) {}
  void put(const uint8_t* codes, size_t n) {
    const size_t bytes = n / 8 * bits;
    if constexpr (bits == 8) {
      __builtin_memcpy(out, codes, n);
    } else if (static_cast<size_t>(end - out) >= bytes + 16) {
      pack_block(codes, n, out);
    } else {
      alignas(64) std::byte last[kLargestBlock * bits / 8 + 64];
      pack_block(codes, n, last);
      __builtin_memcpy(out, last, bytes);
    }
    out += bytes;
  }
  void finish() {}

 private:
  void pack_block(const uint8_t* codes, size_t n, std::byte* to) const {
    static_cast<void>(pack.many(codes, n, to, to + n / 8 * bits + 16));
  }
};
#else
template <int bits>
struct Codes {
  Sink sink;
  Codes(std::byte* begin, size_t n) : sink(begin, n, bits) {}
  void put(const uint8_t* codes, size_t n) {
    for (size_t done = 0; done < n;) {
      const size_t take = smaller(n - done, kSinkCodes - sink.fill);
      __builtin_memcpy(sink.codes + sink.fill, codes + done, take);
      sink.fill += take, done += take;
      if (sink.fill == kSinkCodes) sink.flush();
    }
  }
  void finish() { sink.flush(); }
};
#endif

/// Codes of kLanes values from number `at` of a block on, whose first code starts a byte.
#if defined(CGX_ON_AVX2)
/// In the low bits: higher ones are of the codes behind, which tables do not mind.
template <int bits>
struct BlockCodes {
  const Unpack unpack;
  const I shift;
  BlockCodes() : unpack(bits, 0), shift(mul_low(iota(), set_int(bits))) {}
  I operator()(const std::byte* codes, size_t at) const {
    const std::byte* from = codes + at / 8 * bits;
    if constexpr (bits > 4) return unpack.unmasked(from);
    int eight;
    __builtin_memcpy(&eight, from, sizeof eight);
    return shift_right(_mm256_set1_epi32(eight), shift);
  }
};
#else
template <int bits>
struct BlockCodes {
  const Unpack unpack{bits, 0};
  I operator()(const std::byte* codes, size_t at) const { return unpack(codes + at / 8 * bits); }
};
#endif
