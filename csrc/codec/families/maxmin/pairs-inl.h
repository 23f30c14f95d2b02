// Encoding of two buckets at a time, at the level avx2. Included by loops-inl.h.
//
// What a bucket costs besides its values matters there: so what two buckets need for their codes is
// computed side by side, before the codes of either, and no choice lies between them. Both passes
// read in rising order: a processor that fetches ahead takes the second one for the first one of
// the next pair. (Reading two buckets in turns costs a third of the speed from memory.)

/// Codes of n values, a multiple of 4 * kLanes, as bytes.
template <typename T>
static inline CGX_INLINE void quantize_whole(T type, const std::byte* x, size_t n,
                                             const NearestBucket& bucket, uint8_t* codes) {
  for (size_t i = 0; i < n; i += 4 * kLanes) {
    const auto code = [&](size_t k) CGX_INLINE {
      return bucket.nearest(load(type, x + (i + k * kLanes) * T::kBytes));
    };
    store_bytes(codes + i, code(0), code(1), code(2), code(3), bucket);
  }
}

/// The meta of an ordinary bucket; false: it is none. A unit within the limits of
/// maxmin_by_reciprocal() is not subnormal, and its extremes are neither equal nor infinite, nor so
/// large that the topmost value overflows: their difference, of less than 2^68, would be no multiple
/// of their last bit. So maxmin_meta() gives the same.
static inline CGX_INLINE bool ordinary_meta(const Extremes& e, float levels, MaxMinMeta* meta) {
  const float low = e.min + 0.0f, high = e.max + 0.0f;
  *meta = {(high - low) / levels, low};
  return e.finite && maxmin_by_reciprocal(*meta);
}

/// Encodes pairs of whole buckets to the nearest level; returns how many values these are.
template <typename T>
static size_t encode_pairs(T type, const Part& part, const std::byte* x, std::byte* meta_out,
                           Sink& sink) {
  const size_t n = part.bucket_size;
  if (n % (4 * kLanes) != 0 || 2 * n > kSinkCodes) return 0;
  const float levels = maxmin_levels(part.bits);
  size_t start = 0;
  for (; start + 2 * n <= part.n; start += 2 * n) {
    const std::byte* first = x + start * T::kBytes;
    const std::byte* second = first + n * T::kBytes;
    const Extremes e0 = extremes(type, first, n), e1 = extremes(type, second, n);
    MaxMinMeta metas[2];
    bool fast = ordinary_meta(e0, levels, &metas[0]) & ordinary_meta(e1, levels, &metas[1]) &
                !part.exact_zeros;
    if (!fast) {
      metas[0] = meta_of(part, e0, first, n, T::kBytes, levels);
      metas[1] = meta_of(part, e1, second, n, T::kBytes, levels);
      fast = maxmin_by_reciprocal(metas[0]) && maxmin_by_reciprocal(metas[1]);
    }
    __builtin_memcpy(meta_out, metas, sizeof metas);
    meta_out += sizeof metas;
    if (fast) {
      const NearestBucket one(metas[0], levels), two(metas[1], levels);
      if (sink.fill + 2 * n > kSinkCodes) sink.flush();
      uint8_t* codes = sink.whole_bytes(2 * n);
      const bool direct = codes != nullptr;
      if (!direct) codes = sink.codes + sink.fill, sink.fill += 2 * n;
      quantize_whole(type, first, n, one, codes);
      quantize_whole(type, second, n, two, codes + n);
      if (!direct && sink.fill == kSinkCodes) sink.flush();
      continue;
    }
    for (size_t k = 0; k < 2; ++k) {
      const std::byte* bucket = k == 0 ? first : second;
      if (maxmin_by_reciprocal(metas[k])) {
        encode_bucket<T, Nearest>(NearestBucket(metas[k], levels), bucket, n, {}, 0, sink);
      } else {
        encode_bucket<T, Nearest>(AnyBucket(metas[k], levels), bucket, n, {}, 0, sink);
      }
    }
  }
  return start;
}
