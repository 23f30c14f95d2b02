// Blocks of the error-bounded compressor: every value comes back as the bound promises, and all SIMD
// levels make the same bytes.
#include <atomic>
#include <thread>

#include "bounded_values.h"
#include "codec/bounded/arena.h"
#include "codec/bounded/maps/log_grid.h"

namespace cgx::native {
namespace {

std::shared_ptr<const bounded::Maps> maps_of(DType element, BoundKind kind, double bound) {
  return std::make_shared<const bounded::Maps>(element, kind, bound);
}

void check(DType element, const Promise& promise, int pattern, size_t n) {
  const auto maps = maps_of(element, promise.kind, promise.bound);
  const double step = promise.bound == 0 ? 1e-3 : promise.bound;
  const Block x = hard_values(element, pattern, n, step, n * 64 + static_cast<size_t>(pattern));
  check_round_trip(
      maps, promise.kind, x,
      str_of("element ", static_cast<int>(element), ", kind ", static_cast<int>(promise.kind),
             ", bound ", promise.bound, ", pattern ", pattern, ", n ", n));
}

int patterns_of(DType element) { return is_floating(element) ? kFloatPatterns : kWholePatterns; }

}  // namespace

TEST(bounded_every_pattern_and_bound) {
  for (size_t k = 0; k < kElements; ++k) {
    const DType element = element_number(k);
    for (const Promise& promise : promises_of(element)) {
      for (int pattern = 0; pattern < patterns_of(element); ++pattern) {
        check(element, promise, pattern, 1500 + k);
      }
    }
  }
}

TEST(bounded_every_size) {
  std::vector<size_t> sizes;
  for (size_t n = 1; n <= 400; n += n < 70 ? 1 : 7) sizes.push_back(n);
  for (const size_t border : {512, 768, 1024, 1088, 1280, 2048, 4096}) {
    for (size_t n = border - 2; n <= border + 2; ++n) sizes.push_back(n);
  }
  for (const size_t n : sizes) {
    for (size_t k = 0; k < kElements; ++k) {
      const DType element = element_number(k);
      const auto promises = promises_of(element);
      const int patterns = patterns_of(element);
      check(element, promises[n % promises.size()], static_cast<int>(n / 3 + k) % patterns, n);
      check(element, promises[(n / 7 + 1) % promises.size()], static_cast<int>(n) % patterns, n);
    }
  }
}

TEST(bounded_whole_blocks) {
  size_t turn = 0;
  for (const size_t n : {size_t{65535}, bounded::kBlockValues, size_t{65472}}) {
    for (size_t k = 0; k < kElements; ++k) {
      const DType element = element_number(k);
      const auto promises = promises_of(element);
      for (int pattern = static_cast<int>(turn) % 3; pattern < patterns_of(element); pattern += 3) {
        check(element, promises[++turn % promises.size()], pattern, n);
      }
    }
  }
}

// A special value gets the word before it, of a slice whose words need not have been kept.
TEST(bounded_special_values_between_plain_slices) {
  constexpr size_t kSlices = 64;
  const auto maps = maps_of(DType::kFloat32, BoundKind::kAbsolute, 1e-4);
  Random random(5);
  for (const size_t offset : {size_t{0}, size_t{1}, bounded::kSlice - 1}) {
    for (const float special : {NAN, -0.0F, 1e-40F, 3.0F}) {
      std::vector<float> values(kSlices * bounded::kSlice);
      for (float& value : values) value = static_cast<float>(random.signed_unit() * 0.05);
      for (size_t slice = 1; slice < kSlices; slice += 3) {
        values[slice * bounded::kSlice + offset] = special;
      }
      Block x(values.size() * 4);
      std::memcpy(x.data(), values.data(), x.size());
      check_round_trip(maps, BoundKind::kAbsolute, x, str_of(special, " at ", offset));
    }
  }
}

// A place that fits no int32 becomes INT32_MIN where the processor converts it, which stands for a
// neighbour of the value if that is the least float32 that int32 places reach.
TEST(bounded_least_place) {
  constexpr size_t kValues = 8192, kAt = 5001;  // not in the encoder's sample
  const auto step_of = [](const EncodedBlock& made) {
    CHECK(made.framed[0] == static_cast<std::byte>(bounded::Map::kGrid));
    double step;
    std::memcpy(&step, made.framed.data() + 16, sizeof step);
    return step;
  };
  for (int k = 0; k < 40; ++k) {
    const double bound = 7e-5 * (1 + 0.013 * k);
    const auto maps = maps_of(DType::kFloat32, BoundKind::kAbsolute, bound);
    Random random(3);
    std::vector<float> x(kValues);
    for (float& value : x) value = static_cast<float>(random.signed_unit() * 0.01 * bound);
    const auto bytes = std::as_bytes(std::span(x));
    x[kAt] = static_cast<float>(5 * bound);  // the others alone would be a constant block
    const double step = step_of(encode_block(maps, bytes));
    const auto least = static_cast<float>(-0x1p31 * step);
    for (const float value : {least, std::nextafter(least, 0.0f), std::nextafter(least, -1e9f)}) {
      x[kAt] = value;
      const EncodedBlock made = check_round_trip(maps, BoundKind::kAbsolute, bytes,
                                                 str_of("bound ", bound, ", value ", value));
      CHECK(step_of(made) == step);
    }
  }
}

// With a word for -0 the negative ones are one less: the least word would become the greatest.
TEST(bounded_least_place_among_signed_zeros) {
  constexpr size_t kValues = 8192, kAt = 5001;
  const auto with_zeros = [](std::vector<float>& x) {
    for (size_t i = 0; i < x.size(); i += 3) x[i] = -0.0f;
  };
  for (const double bound : {0.5, 0x1p-20, 0x1p20}) {
    Random random(3);
    std::vector<float> x(kValues);
    for (float& value : x) value = static_cast<float>(random.signed_unit() * 0.01 * bound);
    with_zeros(x);
    for (int near = -2; near <= 2; ++near) {
      x[kAt] =
          bits_float(float_bits(static_cast<float>(-0x1p32 * bound)) + static_cast<uint32_t>(near));
      const auto made = check_round_trip(maps_of(DType::kFloat32, BoundKind::kAbsolute, bound),
                                         BoundKind::kAbsolute, std::as_bytes(std::span(x)),
                                         str_of("bound ", bound, ", value ", x[kAt]));
      CHECK(made.framed[0] == static_cast<std::byte>(bounded::Map::kGrid));
    }
  }
  for (const double bound : {4e-8, 4.05e-8, 4.1e-8, 4.15e-8}) {
    // Values around the one whose word is the least of 32 bits, if the first binade is the least.
    const auto value = static_cast<float>(
        bounded::LogGrid(bound).value(-int64_t{1} << 31, bounded::exponent_of(0x1p-126)));
    std::vector<float> x(kValues);
    for (size_t i = 0; i < kValues; ++i) {
      x[i] = value * static_cast<float>(1 - static_cast<double>(i) * 1e-6);
    }
    with_zeros(x);
    x[1] = 0x1.cp-126f;
    for (uint32_t near = 0; near < 16; ++near) {
      x[kAt + near] = bits_float(float_bits(value) + near - 8);
    }
    const auto made = check_round_trip(maps_of(DType::kFloat32, BoundKind::kPointwise, bound),
                                       BoundKind::kPointwise, std::as_bytes(std::span(x)),
                                       str_of("pointwise bound ", bound));
    CHECK(made.framed[0] == static_cast<std::byte>(bounded::Map::kLogGrid));
  }
}

// Bounds that float32 does not hold, or not with all digits.
TEST(bounded_bounds_outside_of_float32) {
  Random random(4);
  for (const double units : {0.75, 1.5, 1.75, 1.9, 2.75, 3.75, 5.6, 100.5}) {
    std::vector<float> x(8192);
    for (float& value : x) value = static_cast<float>(0x1p-126 + 0x1p-149 * random(3000));
    x[100] = 1e-10f;  // too far for the grid, whose step is the longer for it
    check_round_trip(maps_of(DType::kFloat32, BoundKind::kAbsolute, units * 0x1p-149),
                     BoundKind::kAbsolute, std::as_bytes(std::span(x)),
                     str_of(units, " of the least subnormal number"));
  }
  for (const double bound : {0x1p119, 0x1.8p127, 0x1p128, 1e300}) {
    const Block x = hard_values(DType::kFloat32, 9, 4096, 1, 5);
    check_round_trip(maps_of(DType::kFloat32, BoundKind::kAbsolute, bound), BoundKind::kAbsolute, x,
                     str_of("bound ", bound));
  }
}

TEST(bounded_special_values_keep_their_bits) {
  for (const DType element : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const size_t bytes = size_of(element), n = 3000;
    Block x = hard_values(element, 0, n, 1e-3, 1);
    // Every third value: a NaN with a payload, an infinity, -0.
    const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
    const uint64_t infinity = bits_of_float(element, INFINITY);
    const uint64_t specials[] = {infinity | 5, infinity | sign | 3, infinity, infinity | sign,
                                 sign};
    for (size_t i = 0; i < n; i += 3) {
      std::memcpy(x.data() + i * bytes, &specials[i / 3 % std::size(specials)], bytes);
    }
    for (const Promise& promise : promises_of(element)) {
      const auto maps = maps_of(element, promise.kind, promise.bound);
      const EncodedBlock made = encode_block(maps, x);
      const Block y = decode_block(maps, made.framed, made.content, n);
      for (size_t i = 0; i < n; i += 3) {
        CHECK(std::memcmp(x.data() + i * bytes, y.data() + i * bytes, bytes) == 0, "value ", i);
      }
    }
  }
}

// Threads share maps and an arena. Its blocks are those of one thread, in their order.
TEST(arena_shared_by_threads) {
  constexpr size_t kThreads = 4, kBlocks = 48, kValues = 3000;
  const auto maps = maps_of(DType::kFloat32, BoundKind::kAbsolute, 1e-3);
  std::vector<Block> values;
  for (size_t k = 0; k < kBlocks; ++k) {
    values.push_back(hard_values(DType::kFloat32, static_cast<int>(k), kValues, 1e-3, k));
  }
  const Block head(100, std::byte{7});
  bounded::Arena arena(head.size(),
                       kBlocks * bounded::Encoder::most_bytes(DType::kFloat32, kValues));
  std::atomic<size_t> next{0};
  const auto work = [&] {
    bounded::Encoder encoder(maps);
    for (size_t k; (k = next.fetch_add(1)) < kBlocks;) {
      encoder.encode(values[k].data(), kValues);
      arena.put(k, encoder.finish({}));
    }
  };
  std::vector<std::thread> threads;
  for (size_t k = 0; k < kThreads; ++k) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  arena.close(head, 0);
  Block expected = head;
  CHECK(arena.blocks().size() == kBlocks);
  for (size_t k = 0; k < kBlocks; ++k) {
    const Block alone = encode_block(maps, values[k]).plain;
    expected.insert(expected.end(), alone.begin(), alone.end());
    CHECK(arena.blocks()[k].size() == alone.size(), "block ", k);
  }
  CHECK(std::equal(arena.bytes().begin(), arena.bytes().end(), expected.begin(), expected.end()));
}

// Blocks that come before their turn; more than the arena has room for.
TEST(arena_puts_blocks_in_order) {
  constexpr size_t kBlocks = 10;
  const auto block = [](size_t k) { return Block(k * 100, static_cast<std::byte>(k)); };
  bounded::Arena arena(5, size_t{100} * (kBlocks - 1) * kBlocks / 2 + 70);
  for (const size_t k : {3, 1, 2, 0, 9, 8, 4, 5, 7, 6}) arena.put(k, block(k));
  Block expected(5, std::byte{1});
  for (size_t k = 0; k < kBlocks; ++k) {
    const Block next = block(k);
    expected.insert(expected.end(), next.begin(), next.end());
  }
  expected.insert(expected.end(), 70, std::byte{0});
  arena.close(Block(5, std::byte{1}), 70);
  CHECK(std::equal(arena.bytes().begin(), arena.bytes().end(), expected.begin(), expected.end()));
  bounded::Arena small(0, 150);
  small.put(1, block(1));
  error_of<ResourceError>([&] { small.put(0, block(1)); });
}

}  // namespace cgx::native
