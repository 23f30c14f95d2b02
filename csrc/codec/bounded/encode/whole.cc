#include "codec/bounded/encode/whole.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/float_mode.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/encode/repeats.h"
#include "codec/bounded/loops/loops.h"
#include "codec/bounded/maps/order.h"

namespace cgx::bounded {
namespace {

// The grid of a tensor's values.
template <typename Word>
Grid grid_of(const ValueOf<Word>* x, size_t n, double bound) {
  uint64_t greatest = 0;
  for (size_t first = 0; first < n; first += kSlice) {
    Seen seen;
    word_loops<Word>().look(x + first, std::min(kSlice, n - first), &seen);
    greatest = std::max(greatest, seen.greatest);
  }
  if constexpr (sizeof(Word) == 4) {
    return make_grid(bound, greatest == 0 ? 0 : unit_of_float(static_cast<uint32_t>(greatest)));
  } else {
    return make_grid(bound, greatest == 0 ? 0 : unit_of_double(greatest));
  }
}

// A word of 32 bits for each value. A value without one has the word 0, and its place is in `missing`.
struct Words {
  std::vector<int32_t> all;
  std::vector<size_t> missing;
};

// Returns nothing if too many words are missing, or if one needs more than 32 bits.
template <typename Word>
std::optional<Words> words_of(const ValueOf<Word>* x, size_t n, const Grid& grid) {
  const auto& loops = word_loops<Word>();
  Words out{std::vector<int32_t>(n), {}};
  Word words[kSlice];
  for (size_t first = 0; first < n; first += kSlice) {
    const size_t some = std::min(kSlice, n - first);
    if (loops.to_grid(x + first, some, grid, nullptr, words)) {
      for (size_t i = 0; i < some; ++i) {
        if (!loops.to_grid(x + first + i, 1, grid, nullptr, words + i)) continue;
        words[i] = 0;
        out.missing.push_back(first + i);
      }
      if (out.missing.size() > n / kWordsOf) return std::nullopt;
    }
    const auto [least, greatest] = std::minmax_element(words, words + some);
    if (*least < -std::numeric_limits<int32_t>::max() ||
        *greatest > std::numeric_limits<int32_t>::max()) {
      return std::nullopt;
    }
    std::transform(words, words + some, out.all.begin() + static_cast<std::ptrdiff_t>(first),
                   [](Word word) { return static_cast<int32_t>(word); });
  }
  return out;
}

// Appends the list of the values of x at these places: their number, then for each value the number of
// values since the one before it in the list, and its bytes.
void append_others(const std::byte* x, size_t bytes, const std::vector<size_t>& places,
                   std::vector<std::byte>& out) {
  append_number(out, places.size());
  size_t after = 0;
  for (const size_t place : places) {
    append_number(out, place - after);
    out.insert(out.end(), x + place * bytes, x + (place + 1) * bytes);
    after = place + 1;
  }
}

template <typename Narrow>
std::vector<std::byte> narrowed(const std::vector<int32_t>& words) {
  std::vector<std::byte> out(words.size() * sizeof(Narrow));
  for (size_t i = 0; i < words.size(); ++i) {
    put(out.data(), i * sizeof(Narrow), static_cast<Narrow>(words[i]));
  }
  return out;
}

template <typename Narrow>
bool fits(int32_t least, int32_t greatest) {
  return least >= std::numeric_limits<Narrow>::min() &&
         greatest <= std::numeric_limits<Narrow>::max();
}

}  // namespace

std::optional<WholeContent> words_of_all(const Maps& maps, std::span<const std::byte> values) {
  if (maps.bounded() != Map::kGrid || values.empty()) return std::nullopt;
  const FloatMode mode;
  return with_word(maps.element(), [&]<typename Word>() -> std::optional<WholeContent> {
    const auto* const x = reinterpret_cast<const ValueOf<Word>*>(values.data());
    const size_t n = values.size() / sizeof(Word);
    const Grid grid = grid_of<Word>(x, n, maps.bound());
    const std::optional<Words> words = words_of<Word>(x, n, grid);
    if (!words) return std::nullopt;
    const auto [least, greatest] = std::minmax_element(words->all.begin(), words->all.end());
    WholeContent out;
    out.whole.form = Whole::Form::kWords;
    out.whole.step = grid.step;
    if (fits<int8_t>(*least, *greatest)) {
      out.whole.word_bytes = 1;
      out.content = narrowed<int8_t>(words->all);
    } else if (fits<int16_t>(*least, *greatest)) {
      out.whole.word_bytes = 2;
      out.content = narrowed<int16_t>(words->all);
    } else {
      out.whole.word_bytes = 4;
      out.content = narrowed<int32_t>(words->all);
    }
    const size_t before = out.content.size();
    append_others(values.data(), sizeof(Word), words->missing, out.content);
    out.whole.others = out.content.size() - before;
    return out;
  });
}

std::optional<WholeContent> mostly_of_all(DType element, std::span<const std::byte> values) {
  constexpr size_t kSampled = 1024;
  const size_t n = values.size() / size_of(element);
  if (n < kSampled) return std::nullopt;
  std::vector<uint64_t> sample(kSampled);
  for (size_t i = 0; i < kSampled; ++i) {
    sample[i] = bits_at(element, values.data(), i * (n / kSampled));
  }
  WholeContent out;
  out.whole.form = Whole::Form::kMostly;
  if (!append_mostly(element, values.data(), n, tally_of(sample).most, n / kOthersOf,
                     out.content)) {
    return std::nullopt;
  }
  out.whole.others = out.content.size();
  return out;
}

bool append_mostly(DType element, const std::byte* x, size_t n, uint64_t bits, size_t most,
                   std::vector<std::byte>& out) {
  const size_t bytes = size_of(element);
  out.resize(out.size() + bytes);
  put_bits(element, out.data() + out.size() - bytes, 0, bits);
  std::vector<size_t> others;
  bool few = true;
  with_bits(element, [&]<typename Bits>() {
    const auto value = static_cast<Bits>(bits);
    for (size_t first = 0; few && first < n; first += kSlice) {
      const auto* const some = reinterpret_cast<const Bits*>(x) + first;
      const size_t count = std::min(kSlice, n - first);
      Bits differ = 0;
      for (size_t i = 0; i < count; ++i) differ = static_cast<Bits>(differ | (some[i] ^ value));
      if (differ == 0) continue;
      for (size_t i = 0; i < count; ++i) {
        if (some[i] != value) others.push_back(first + i);
      }
      few = others.size() <= most;
    }
  });
  if (!few) return false;
  append_others(x, bytes, others, out);
  return true;
}

}  // namespace cgx::bounded
