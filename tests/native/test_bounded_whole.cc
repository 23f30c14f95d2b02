// Payloads of one frame: values as words of one grid, and as mostly one, keep the bound; whatever the
// bytes become, a reader gives values or a PayloadError. For sanitizers.
#include "bounded_whole.h"
#include "codec/bounded/container.h"
#include "codec/compressors/list.h"
#include "data.h"
#include "toy_entropy.h"

namespace cgx::native {
namespace {

using bounded::Container;
using bounded::Maps;
using bounded::OpenContainer;
using bounded::Whole;

// n values. If `rare` is 1, they are uniform between -reach and reach, with a few NaN and -0. Otherwise they
// are 1, except for one value in `rare`, which is uniform.
Block values_of(DType element, size_t n, double reach, size_t rare, Random& random) {
  Block x(n * size_of(element));
  for (size_t i = 0; i < n; ++i) {
    const bool other = random(rare) == 0;
    double value = rare > 1 && !other ? 1 : random.signed_unit() * reach;
    if (rare <= 1 && random(300) == 0) value = random(2) == 0 ? NAN : -0.0;
    uint64_t bits = 0;
    if (element == DType::kFloat64) {
      bits = std::bit_cast<uint64_t>(value);
    } else if (element == DType::kFloat32) {
      bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    } else {
      bits = value == 1 ? 1 : element == DType::kBool ? 0 : random(200);
    }
    std::memcpy(x.data() + i * size_of(element), &bits, size_of(element));
  }
  return x;
}

size_t some_of(size_t n, Random& random) { return n == 0 ? 0 : random(n + 1); }

TEST(bounded_tensors_as_words_and_as_mostly_one_value) {
  Random random(11);
  size_t words = 0, mostly = 0;
  const auto look = [&](const Maps& maps, BoundKind kind, size_t n, double reach, size_t rare) {
    const Block x = values_of(maps.element(), n, reach, rare, random);
    const size_t a = some_of(n, random), b = some_of(n, random);
    const size_t found = check_whole_round_trip(maps, kind, x, std::min(a, b), std::max(a, b),
                                                str_of(n, " values up to ", reach));
    (rare > 1 ? mostly : words) += found;
  };
  for (size_t i = 0; i < kElements; ++i) {
    const Maps lossless(element_number(i), BoundKind::kLossless, 0);
    for (const size_t n : {0, 1, 1023, 1024, 1025, 5000, 70'000}) {
      look(lossless, BoundKind::kLossless, n, 9, 3000);
    }
  }
  for (const DType element : {DType::kFloat32, DType::kFloat64}) {
    for (const BoundKind kind :
         {BoundKind::kAbsolute, BoundKind::kRelative, BoundKind::kPointwise}) {
      const Maps maps(element, kind, 0x1p-10);
      for (size_t n = 0; n <= 200; ++n) look(maps, kind, n, 0.2, 1);
      // Words of 1, of 2 and of 4 bytes, and too many or too long ones.
      for (const double reach : {0.2, 60.0, 1e6, 1e9, 1e30}) {
        for (const size_t n : {1023, 1024, 1025, 2049, 66'000}) look(maps, kind, n, reach, 1);
      }
    }
  }
  CHECK(words > 400 && mostly > 30, words, " of words, ", mostly, " of mostly one value");
}

// Changes, removes or inserts up to three bytes at places from `from` on, most often near the beginning or
// the end.
void alter(Block& block, size_t from, Random& random) {
  for (size_t left = 1 + random(3); left > 0 && block.size() > from; --left) {
    const size_t bytes = block.size() - from;
    const size_t near = random(2) == 0 ? random(std::min<size_t>(bytes, 24)) : random(bytes);
    const size_t place = from + (random(2) == 0 ? near : bytes - 1 - near);
    const auto at = block.begin() + static_cast<std::ptrdiff_t>(place);
    if (random(6) == 0) {
      block.erase(at);
    } else if (random(6) == 0) {
      block.insert(at, static_cast<std::byte>(random(256)));
    } else {
      *at = random(2) == 0 ? static_cast<std::byte>(random(256))
                           : *at ^ static_cast<std::byte>(1 << random(8));
    }
  }
}

TEST(bounded_frames_that_were_altered) {
  Random random(12);
  size_t taken = 0, refused = 0;
  for (size_t round = 0; round < 3000; ++round) {
    const DType element = element_number(round % 3 == 0 ? random(kElements) : random(2));
    const bool absolute = element == DType::kFloat32 || element == DType::kFloat64;
    const BoundKind kind = absolute ? BoundKind::kAbsolute : BoundKind::kLossless;
    const Maps maps(element, kind, absolute ? 0x1p-10 : 0);
    size_t n = 1024 + random(500);
    const bool as_words = absolute && random(2) == 0;
    const Block x = values_of(element, n, 0.2, as_words ? 1 : 2000, random);
    auto made = as_words ? bounded::words_of_all(maps, x) : bounded::mostly_of_all(element, x);
    if (!made) continue;
    alter(made->content, 0, random);
    if (random(2) == 0) {
      Block head;
      made->whole.write(head);
      alter(head, 0, random);
      std::span<const std::byte> in(head);
      try {
        made->whole = Whole::read(in);
      } catch (const bounded::PayloadError&) {
        ++refused;
        continue;
      }
    }
    if (random(2) == 0) made->whole.others = made->content.size() - (as_words ? n : 0);
    if (random(20) == 0) n = random(3000);
    const size_t a = some_of(n, random), b = some_of(n, random);
    const auto found =
        check_whole(maps, made->whole, made->content, n, std::min(a, b), std::max(a, b));
    ++(found.second.empty() ? taken : refused);
  }
  CHECK(taken > 100 && refused > 100, taken, " taken, ", refused, " refused");
}

// Returns the payload with valid checksums of the frame and of the header.
Block sealed(Block payload, size_t head) {
  head = std::min(head, payload.size());
  const uint32_t crc = crc32c(payload.data() + head, payload.size() - head);
  payload.resize(payload.size() + 4);
  std::memcpy(payload.data() + payload.size() - 4, &crc, 4);
  const auto begin = payload.begin();
  Block covered(begin, begin + 8);
  covered.insert(covered.end(), begin + 12, begin + static_cast<std::ptrdiff_t>(head));
  covered.insert(covered.end(), payload.end() - 4, payload.end());
  const uint32_t whole = crc32c(covered.data(), covered.size());
  std::memcpy(payload.data() + 8, &whole, 4);
  return payload;
}

TEST(bounded_payloads_of_one_frame) {
  const auto entropy = std::make_shared<const ToyEntropy>();
  const CompressorConfig config(bounded_compressor());
  const auto reader = make_compressor(config, entropy), without = make_compressor(config, nullptr);
  Random random(3);
  const DType element = DType::kFloat32;
  const Maps maps(element, BoundKind::kAbsolute, 0x1p-10);
  const size_t n = 2 * bounded::kBlockValues + 100;
  for (const auto form : {Whole::Form::kValues, Whole::Form::kWords, Whole::Form::kMostly}) {
    const Block x = values_of(element, n, 9, form == Whole::Form::kMostly ? 5000 : 1, random);
    bounded::WholeContent made{{}, x};
    if (form == Whole::Form::kWords) made = *bounded::words_of_all(maps, x);
    if (form == Whole::Form::kMostly) made = *bounded::mostly_of_all(element, x);
    Container header;
    header.kind = maps.kind();
    header.asked = header.bound = maps.bound();
    header.shape = {n};
    header.whole = made.whole;
    const Block frame = entropy->compress(made.content, {});
    const Block payload = header.write_whole(frame);
    Block y(x.size());
    reader->decompress(payload, y.data(), n, element);
    const BoundKind kind = form == Whole::Form::kWords ? maps.kind() : BoundKind::kLossless;
    check_promise(element, kind, maps.bound(), x, y, "a payload");
    CHECK(
        contains(error_of<ConfigError>([&] { without->decompress(payload, y.data(), n, element); }),
                 "needs an entropy coder"));
    const size_t head = payload.size() - frame.size() - 4;
    for (size_t round = 0; round < 200; ++round) {
      Block other(payload.begin(), payload.end() - 4);
      alter(other, round % 2 == 0 ? 12 : head, random);
      const ExactBytes exact(sealed(std::move(other), head), 1);
      try {
        reader->decompress(exact.span(), y.data(), n, element);
      } catch (const ConfigError&) {  // of the payload, or of the toy's frame
      }
    }
  }
}

}  // namespace
}  // namespace cgx::native
