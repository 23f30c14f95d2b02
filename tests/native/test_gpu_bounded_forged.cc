// The kernels of the error-bounded compressor on blocks that no encoder need write: of any form, with words
// at their limits, and with faults. By loops over their threads: the values and refusals of the CPU.
#include "bounded_forged.h"

namespace cgx::native {

// Curves of which some nodes are in their range: a run has all of its nodes, or those before it.
TEST(gpu_bounded_curves_that_leave_their_range) {
  for (const DType element : {DType::kFloat32, DType::kFloat64}) {
    const auto maps = std::make_shared<const bounded::Maps>(element, BoundKind::kAbsolute, 1e-3);
    BlockHeader header;
    header.map = Map::kGrid;
    header.predictor = Predictor::kCurve;
    header.base = -127;
    constexpr size_t n = 2600;
    // Nodes are below 2^30 in 64ths of a step: positions below 2^24.
    for (const int edge : {0, 40, 100, 160, 230}) {
      for (const int sign : {1, -1}) {
        Block x(n * size_of(element));
        for (size_t i = 0; i < n; ++i) {
          const int place = static_cast<int>(i % bounded::kCurveRun);
          const double value =
              i / bounded::kCurveRun % 3 == 1 ? 0x1p24 + 3e4 * sign * (place - edge) : 100 - place;
          const uint64_t bits = bits_of_float(element, value * 2e-3);
          std::memcpy(x.data() + i * size_of(element), &bits, size_of(element));
        }
        check_form(maps, BoundKind::kAbsolute, header, x, str_of("edge ", edge, ", sign ", sign));
      }
    }
  }
}

// Sums end at every place of a thread's four values.
TEST(gpu_bounded_sums_of_every_length) {
  for (const DType element : {DType::kFloat32, DType::kFloat64, DType::kInt16}) {
    const bool floating = is_floating(element);
    const BoundKind kind = floating ? BoundKind::kAbsolute : BoundKind::kLossless;
    const auto maps = std::make_shared<const bounded::Maps>(element, kind, floating ? 1e-3 : 0);
    for (const Predictor predictor : {Predictor::kPrevious, Predictor::kLine}) {
      for (size_t n = 1; n <= 1100; n += n < 12 ? 1 : 67) {
        BlockHeader header;
        header.map = maps->bounded();
        header.predictor = predictor;
        header.width = static_cast<int>(n % 12);
        header.base = -(int64_t{127} << header.width);
        check_form(maps, kind, header, hard_values(element, 6, n, 1e-3, n),
                   str_of("element ", static_cast<int>(element), ", n ", n));
      }
    }
  }
}

TEST(gpu_bounded_every_form) {
  size_t turn = 0;
  for (size_t k = 0; k < kElements; ++k) {
    const DType element = element_number(k);
    std::vector<Promise> promises{{BoundKind::kLossless, 0}};
    if (is_floating(element)) {
      promises.push_back({BoundKind::kAbsolute, 1e-3});
      promises.push_back({BoundKind::kPointwise, 1e-2});
    }
    for (const Promise& promise : promises) {
      const auto maps = std::make_shared<const bounded::Maps>(element, promise.kind, promise.bound);
      for (const Predictor predictor : {Predictor::kNone, Predictor::kMean, Predictor::kPrevious,
                                        Predictor::kLine, Predictor::kCurve}) {
        const bool curve = predictor == Predictor::kCurve;
        if (curve && maps->bounded() != Map::kGrid) continue;
        for (const int width : {0, 1, 3, 8, 13, 23, 24, 41, 56}) {
          if (width > 24 && size_of(element) < 8) continue;
          for (const bool zeros : {false, true}) {
            if (zeros && (curve || maps->bounded() == Map::kOrder)) continue;
            BlockHeader header;
            header.map = maps->bounded();
            header.predictor = predictor;
            header.width = width;
            header.base = -(int64_t{127} << width);
            header.signed_zero = zeros;
            if (header.map == Map::kLogGrid) header.origin = size_of(element) == 8 ? -1074 : -149;
            ++turn;
            constexpr size_t kSizes[] = {1, 255, 257, 510, 513, 1024, 1500, 3100, 2051};
            const size_t n = kSizes[turn % std::size(kSizes)];
            const int pattern = static_cast<int>(turn % 16);
            const Block x = hard_values(element, pattern, n, 1e-3, turn);
            check_form(maps, promise.kind, header, x,
                       str_of("element ", k + 1, ", kind ", static_cast<int>(promise.kind),
                              ", predictor ", static_cast<int>(predictor), ", width ", width,
                              ", zeros ", zeros, ", n ", n, ", pattern ", pattern));
          }
        }
      }
    }
  }
}

TEST(gpu_bounded_words_at_their_limits) {
  const auto order = [](DType element, int shift, int64_t least, int64_t greatest,
                        int64_t origin = 0) {
    check_limits(
        {element, BoundKind::kLossless, 0, header_of(Map::kOrder, shift, origin), least, greatest});
  };
  order(DType::kFloat16, 0, -0x8000, 0x7fff);
  order(DType::kBFloat16, 3, -0x1000, 0xfff, 77);
  order(DType::kFloat32, 0, INT32_MIN, INT32_MAX, 1000);
  order(DType::kFloat32, 5, -(1 << 26), (1 << 26) - 1, 1000);
  order(DType::kFloat64, 0, INT64_MIN, INT64_MAX);
  order(DType::kFloat64, 9, -(int64_t{1} << 54), (int64_t{1} << 54) - 1);
  order(DType::kInt8, 0, -128, 127);
  order(DType::kInt8, 3, -16, 15);
  order(DType::kUInt8, 0, 0, 255);
  order(DType::kUInt8, 3, 0, 31);
  order(DType::kInt16, 2, -0x2000, 0x1fff);
  order(DType::kUInt16, 2, 0, 0x3fff);
  order(DType::kInt32, 0, INT32_MIN, INT32_MAX);
  order(DType::kInt32, 4, -(1 << 27), (1 << 27) - 1);
  order(DType::kUInt32, 4, -(1 << 27), (1 << 27) - 1);
  order(DType::kInt64, 7, -(int64_t{1} << 56), (int64_t{1} << 56) - 1);
  order(DType::kUInt64, 7, -(int64_t{1} << 56), (int64_t{1} << 56) - 1);
  order(DType::kBool, 0, 0, 1);
  const auto grid = [](DType element, double bound, int64_t most) {
    check_limits(
        {element, BoundKind::kAbsolute, bound, header_of(Map::kGrid, 0, 0, bound), -most, most});
  };
  grid(DType::kFloat32, 0.5, INT32_MAX);
  grid(DType::kFloat64, 0.5, int64_t{1} << 51);
  // Beyond, the products are infinite: the last is a tie between the greatest number and 2^128.
  grid(DType::kFloat32, 0x1p100, (1 << 28) - 9);
  grid(DType::kFloat64, 0x1p999, (int64_t{1} << 25) - 1);
  for (const int version : {1, 2}) {
    for (const DType element : {DType::kFloat16, DType::kBFloat16}) {
      for (const BoundKind kind : {BoundKind::kAbsolute, BoundKind::kPointwise}) {
        const bounded::Lattice lattice(element, 1e-2, kind == BoundKind::kAbsolute, version > 1);
        check_limits({element, kind, 1e-2, header_of(Map::kLattice), -lattice.most(),
                      lattice.most(), version});
      }
    }
  }
  const bounded::LogGrid log_grid(1e-2);
  const int64_t binade = log_grid.codes();
  check_limits({DType::kFloat64, BoundKind::kPointwise, 1e-2, header_of(Map::kLogGrid, 0, 1000),
                -24 * binade, 24 * binade});
  check_limits({DType::kFloat64, BoundKind::kPointwise, 1e-2, header_of(Map::kLogGrid, 0, -1074),
                -2098 * binade, 2098 * binade});
  check_limits({DType::kFloat32, BoundKind::kPointwise, 1e-2, header_of(Map::kLogGrid, 0, 120),
                -8 * binade, 8 * binade});
}

// Magnitudes that round to 0 in the type have no words.
TEST(gpu_bounded_words_of_numbers_below_the_type) {
  const auto maps =
      std::make_shared<const bounded::Maps>(DType::kFloat32, BoundKind::kPointwise, 1e-2, 1);
  const int64_t binade = maps->log_grid().codes();
  const BlockHeader header = header_of(Map::kLogGrid, 0, -160);
  const auto taken = [&](int64_t word) {
    std::vector<int64_t> words(300);
    words[170] = word;
    return decoded_everywhere(maps, joined(fields_of(header, 4, words)), words.size(),
                              str_of("word ", word))
        .has_value();
  };
  // The first magnitudes are those of 2^-160; half of the least number, 2^-150, is rounded to 0.
  for (const int64_t sign : {1, -1}) {
    CHECK(!taken(sign) && !taken(sign * 9 * binade) && taken(0));
    CHECK(!taken(sign * 10 * binade) && taken(sign * (10 * binade + 1)));
  }
}

// Version 1 has words of float64 beyond 2^51, of numbers whose sum with 1.5 2^52 is exact.
TEST(gpu_bounded_far_words_of_version_1) {
  const auto maps =
      std::make_shared<const bounded::Maps>(DType::kFloat64, BoundKind::kAbsolute, 0.5, 1);
  const BlockHeader header = header_of(Map::kGrid, 0, 0, 1.0);
  const auto value_of = [&](int64_t word) -> std::optional<double> {
    std::vector<int64_t> words(70);
    words[66] = word;
    const auto y = decoded_everywhere(maps, joined(fields_of(header, 8, words)), words.size(),
                                      str_of("word ", word));
    if (!y) return std::nullopt;
    double value;
    std::memcpy(&value, y->data() + 66 * 8, 8);
    return value;
  };
  for (const double x : {0.0, -7.0, 0x1p51, -0x1p51, 0x1p51 + 4, -0x1p52, 1.7e18, -1e300, 1e16}) {
    const double sum = x + bounded::kRounder;
    if (sum - bounded::kRounder != x) continue;
    CHECK(value_of(bounded::word_of<int64_t>(sum)) == x, x);
  }
  for (const double none : {double{INFINITY}, double{-INFINITY}, double{NAN}}) {
    CHECK(!value_of(bounded::word_of<int64_t>(none)), none);
  }
}

// A curve may lead beyond the type's numbers where a value is special, and nowhere else.
TEST(gpu_bounded_curves_beyond_the_type) {
  for (const bool wide : {false, true}) {
    const DType element = wide ? DType::kFloat64 : DType::kFloat32;
    const double step = wide ? 0x1p999 : 0x1p104;
    const size_t word = wide ? 8 : 4, n = 600;
    const auto maps = std::make_shared<const bounded::Maps>(element, BoundKind::kAbsolute, step);
    BlockHeader header = header_of(Map::kGrid, 0, 0, step);
    header.predictor = Predictor::kCurve;
    Fields fields = fields_of(header, word, std::vector<int64_t>(n));
    fields.nodes.assign(3 * bounded::kCurveNodes, (1 << 24) * 64 / 2);  // in range with word 0
    const auto refused = [&](const char* what) {
      return !decoded_everywhere(maps, joined(fields), n, what).has_value();
    };
    const int64_t far = int64_t{1} << (wide ? 30 : 24);
    if (wide) fields.nodes.assign(3 * bounded::kCurveNodes, 0);
    CHECK(!refused("in range"));
    std::memcpy(fields.outliers.data() + 77 * word, &far, word);
    CHECK(refused("beyond, and no special value"));
    for (const uint16_t place : {uint16_t{3}, uint16_t{76}, uint16_t{78}, uint16_t{77}}) {
      fields.places.resize(2);
      fields.specials.assign(word, std::byte{0});
      std::memcpy(fields.places.data(), &place, 2);
      CHECK(refused("with a special value") == (place != 77));
    }
    for (const bool listed : {false, true}) {
      constexpr size_t kPlaces = 11;
      fields.places.resize(2 * kPlaces);
      fields.specials = Block(word * kPlaces);
      for (size_t k = 0; k < kPlaces; ++k) {
        const auto place = static_cast<uint16_t>(listed && k == 7 ? 77 : 10 * k + 5);
        std::memcpy(fields.places.data() + 2 * k, &place, 2);
      }
      CHECK(refused("among special values") != listed);
    }
    fields.nodes[5] = (1 << 30) + 1;
    CHECK(refused("with a node out of range"));
  }
}

// Lists that are longer than a thread block, of words of both widths: each fault is found alone.
TEST(gpu_bounded_long_lists) {
  constexpr size_t n = 1700, kListed = 800;
  for (const DType element : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const size_t bytes = size_of(element), word = bytes == 8 ? 8 : 4;
    const auto maps = std::make_shared<const bounded::Maps>(element, BoundKind::kAbsolute, 0.5);
    const Map map = bytes == 2 ? Map::kLattice : Map::kGrid;
    Fields good = fields_of(header_of(map, 0, 0, bytes == 2 ? 0 : 0.5), word, {});
    good.symbols.assign(n, 1);
    good.places.resize(2 * kListed);
    good.specials.resize(bytes * kListed);
    const auto place = [](Fields& fields, size_t k, size_t at) {
      const auto value = static_cast<uint16_t>(at);
      std::memcpy(fields.places.data() + 2 * k, &value, 2);
    };
    for (size_t k = 0; k < kListed; ++k) place(good, k, 2 * k + 1);
    const auto refused = [&](const Fields& fields, const std::string& what) {
      return !decoded_everywhere(maps, joined(fields), n, what).has_value();
    };
    CHECK(!refused(good, "plain"));
    for (const size_t k : {size_t{1}, size_t{255}, size_t{256}, size_t{700}, kListed - 1}) {
      for (const size_t at : {2 * k - 1, size_t{0}, n, size_t{65535}}) {
        Fields bad = good;
        place(bad, k, at);
        CHECK(refused(bad, str_of("special value ", k, " at ", at)), k);
      }
    }
    // Outliers of many steps, and one more or less.
    Fields outliers = good;
    for (size_t i = 3; i < n; i += 5) outliers.symbols[i] = bounded::kOutlier;
    const auto count = static_cast<size_t>(
        std::count(outliers.symbols.begin(), outliers.symbols.end(), bounded::kOutlier));
    for (const size_t listed : {count - 1, count, count + 1}) {
      outliers.header.outliers = static_cast<uint32_t>(listed);
      outliers.outliers = Block(listed * word);
      CHECK(refused(outliers, "outliers") == (listed != count), listed);
    }
    outliers.header.outliers = static_cast<uint32_t>(count);
    outliers.outliers = Block(count * word);
    for (size_t i = 1696; i < n; ++i) {
      if (outliers.symbols[i] == bounded::kOutlier) continue;
      outliers.symbols[i] = bounded::kOutlier;  // the last one of these has none
      CHECK(refused(outliers, "an outlier too many"), i);
      outliers.symbols[i] = 1;
    }
  }
}

// Blocks of values as they are, and of one value.
TEST(gpu_bounded_blocks_without_words) {
  for (size_t k = 0; k < kElements; ++k) {
    const DType element = element_number(k);
    const auto maps = std::make_shared<const bounded::Maps>(element, BoundKind::kLossless, 0);
    for (const size_t n : {1, 255, 256, 257, 600, 1023, 1500}) {
      const Block x = hard_values(element, 0, n, 1e-3, n);
      for (const Map map : {Map::kRaw, Map::kConstant}) {
        OnKernel made;
        made.block.assign(1, static_cast<std::byte>(map));
        const size_t values = map == Map::kRaw ? n : 1;
        made.block.insert(made.block.end(), x.begin(),
                          x.begin() + static_cast<std::ptrdiff_t>(values * size_of(element)));
        made.block.resize(made.block.size() + bounded::kCrcBytes);
        seal(made.block);
        const std::string what = str_of("element ", k + 1, ", n ", n);
        const auto y = decoded_everywhere(maps, made, n, what);
        CHECK(y.has_value() && (map == Map::kConstant || *y == x), what);
        std::vector<uint32_t> faults;
        const size_t from = n / 3, to = n - n / 7;
        const Block part = decode_on_kernels(maps, {made}, n, from, to, &faults);
        const auto begin = y->begin() + static_cast<std::ptrdiff_t>(from * size_of(element));
        CHECK(std::equal(part.begin(), part.end(), begin), what);
      }
    }
  }
}

TEST(gpu_bounded_bools_that_are_none) {
  const auto maps = std::make_shared<const bounded::Maps>(DType::kBool, BoundKind::kLossless, 0);
  constexpr size_t n = 700;
  for (const Map map : {Map::kRaw, Map::kConstant}) {
    for (const int value : {0, 1, 2, 255}) {
      OnKernel made;
      made.block.resize(1 + (map == Map::kRaw ? n : 1) + bounded::kCrcBytes, std::byte{1});
      made.block[0] = static_cast<std::byte>(map);
      made.block[map == Map::kRaw ? 650 : 1] = static_cast<std::byte>(value);
      seal(made.block);
      CHECK(decoded_everywhere(maps, made, n, "bools").has_value() == (value < 2), value);
    }
  }
}

// Bits that no value has are 0; a symbol of an outlier has one; a base fits the words.
TEST(gpu_bounded_what_no_encoder_writes) {
  const auto maps =
      std::make_shared<const bounded::Maps>(DType::kFloat32, BoundKind::kAbsolute, 0.5);
  BlockHeader header = header_of(Map::kGrid, 0, 0, 0.5);
  header.width = 3;
  Fields fields = fields_of(header, 4, {});
  constexpr size_t n = 77;
  fields.symbols.assign(n, 9);
  fields.low = Block(3 * 16);
  const auto refused = [&](const Fields& some, const char* what) {
    return !decoded_everywhere(maps, joined(some), n, what).has_value();
  };
  CHECK(!refused(fields, "plain"));
  for (const size_t place : {size_t{0}, size_t{1}, size_t{2}, size_t{3}, n - 1}) {
    Fields other = fields;
    other.symbols[place] = bounded::kOutlier;
    CHECK(refused(other, "an outlier that is missing"));
    other = fields;
    other.low[place / 8] |= static_cast<std::byte>(1 << place % 8);
    CHECK(!refused(other, "a bit of a value"));
  }
  for (size_t bit = n; bit < 128; ++bit) {
    for (size_t plane = 0; plane < 3; ++plane) {
      Fields other = fields;
      other.low[16 * plane + bit / 8] |= static_cast<std::byte>(1 << bit % 8);
      CHECK(refused(other, "a bit of no value"));
    }
  }
  for (const int64_t base : {int64_t{INT32_MIN}, int64_t{INT32_MAX}, int64_t{INT32_MAX} + 1,
                             int64_t{INT32_MIN} - 1, INT64_MIN, INT64_MAX}) {
    Fields other = fields;
    other.header.base = base;
    // The greatest base and the symbols reach the word that stands for none, or go round.
    const bool fits = base >= INT32_MIN && base <= INT32_MAX;
    CHECK(refused(other, "a base") != fits, base);
  }
  for (const auto& [low, width] :
       {std::pair{bounded::LowBits::kCoded, 0}, {bounded::LowBits::kCoded, 3}}) {
    Fields other = fields;
    other.header.low = low;
    other.header.width = width;
    other.low.clear();
    CHECK(refused(other, "coded low bits"));
  }
  // Places of special values ascend and are in the block.
  for (const auto& [two, fits] : {std::pair{std::pair{3, 76}, true},
                                  {std::pair{0, 1}, true},
                                  {std::pair{3, 77}, false},
                                  {std::pair{77, 3}, false},
                                  {std::pair{5, 5}, false},
                                  {std::pair{6, 5}, false},
                                  {std::pair{0, 65535}, false}}) {
    Fields other = fields;
    const uint16_t list[] = {static_cast<uint16_t>(two.first), static_cast<uint16_t>(two.second)};
    other.places.resize(sizeof list);
    std::memcpy(other.places.data(), list, sizeof list);
    other.specials = Block(8, std::byte{0x3f});
    CHECK(refused(other, "special values") != fits, two.first, ", ", two.second);
  }
  // Packed symbols: three codes of the last byte stand for no value.
  Fields packed = fields;
  packed.header.quads = true;
  packed.header.width = 0;
  packed.low.clear();
  packed.symbols.assign(bounded::quad_bytes(n), 0);
  CHECK(!refused(packed, "packed"));
  for (const int code : {1, 2}) {
    for (const int at : {1, 2, 3}) {
      Fields other = packed;
      other.symbols.back() = static_cast<uint8_t>(code << 2 * at);
      CHECK(refused(other, "a code of no value"));
    }
  }
}

}  // namespace cgx::native
