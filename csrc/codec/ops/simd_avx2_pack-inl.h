// Packing of codes at the level avx2. Included by simd_avx2-inl.h.

/// 32 codes, a byte each, to 4 * bits bytes. Writes up to 16 bytes at once, in rising order.
/// Codes and bytes of one step, and the bytes that it may touch.
constexpr size_t kPackCodes = 32;
struct Pack {
  I pair, quad, squeeze, up;
  size_t lane_bytes;
  int width;
  explicit Pack(int bits)
      : pair(broadcast(kPack.of[bits].pair)),
        quad(broadcast(kPack.of[bits].quad)),
        squeeze(broadcast(kPack.of[bits].squeeze)),
        up(_mm256_set1_epi64x(32 - 4 * bits)),
        lane_bytes(2 * static_cast<size_t>(bits)),
        width(bits) {}
  static I broadcast(const void* table) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(table)));
  }
  static I load_codes(const uint8_t* codes) {
    return _mm256_loadu_si256(reinterpret_cast<const I*>(codes));
  }
  static void store_lane(std::byte* out, __m128i lane) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), lane);
  }
  void operator()(const uint8_t* codes, std::byte* out) const {
    // Of two neighbours the lower one moves up to the upper one, then both move down.
    const I dwords = _mm256_madd_epi16(_mm256_maddubs_epi16(pair, load_codes(codes)), quad);
    const I joined = _mm256_srlv_epi64(_mm256_sllv_epi32(dwords, up), up);
    const I packed = _mm256_shuffle_epi8(joined, squeeze);
    store_lane(out, _mm256_castsi256_si128(packed));
    store_lane(out + lane_bytes, _mm256_extracti128_si256(packed, 1));
  }

  /// Packs as many of n codes as there is room for whole stores before `end`; returns how many.
  /// Widths that divide a byte need no shuffle, and go by up to 64 codes.
  size_t many(const uint8_t* codes, size_t n, std::byte* out, const std::byte* end) const {
    size_t i = 0;
    switch (width) {
      case 1:
        for (; i + 32 <= n; i += 32, out += 4) {
          const int word = _mm256_movemask_epi8(_mm256_slli_epi16(load_codes(codes + i), 7));
          __builtin_memcpy(out, &word, sizeof word);
        }
        return i;
      case 2:
        for (; i + 64 <= n; i += 64, out += 16) {
          const I fours = _mm256_maddubs_epi16(_mm256_set1_epi16(0x1001), twos(codes + i));
          const __m128i mixed =
              _mm_packus_epi16(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
          store_lane(out, _mm_shuffle_epi32(mixed, 0xd8));
        }
        return i;
      case 4:
        for (; i + 64 <= n; i += 64, out += 32) {
          _mm256_storeu_si256(reinterpret_cast<I*>(out),
                              _mm256_permute4x64_epi64(twos(codes + i), 0xd8));
        }
        return i;
      default: {
        const size_t step = 2 * lane_bytes, room = static_cast<size_t>(end - out);
        if (room < step + 16) return 0;
        const size_t most =
            (n / kPackCodes < (room - 16) / step ? n / kPackCodes : (room - 16) / step) *
            kPackCodes;
        // In registers: stores could change *this, as far as compilers know.
        const Pack pack = *this;
        for (; i < most; i += kPackCodes, out += step) pack(codes + i, out);
        return i;
      }
    }
  }

 private:
  /// Pairs of 64 codes, a byte each; the second and the third quarter change places.
  I twos(const uint8_t* codes) const {
    return _mm256_packus_epi16(_mm256_maddubs_epi16(pair, load_codes(codes)),
                               _mm256_maddubs_epi16(pair, load_codes(codes + 32)));
  }
};
