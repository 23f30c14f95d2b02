#include "codec/bounded/ans/coder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "codec/bounded/bytes.h"
#include "codec/bounded/element.h"

namespace cgx::bounded::ans {
namespace {

// How a state takes a symbol in: x becomes (x / frequency << kTotalBits) + x % frequency + start, the
// quotient by a multiplication (Alverson, 1991), which is exact for all x below 2^31.
struct Step {
  uint64_t reciprocal;  // 2^64 / frequency, rounded up
  uint32_t limit;  // from which on a word is put out first; 2^31, which no state reaches: of kTotal
  uint16_t bias;
  uint16_t complement;  // kTotal - frequency
};

Step step_of(uint32_t start, uint32_t frequency) {
  Step step{};
  step.limit = frequency << (31 - kTotalBits);
  step.complement = static_cast<uint16_t>(kTotal - frequency);
  if (frequency < 2) {
    // The quotient is x - 1 by this multiplication, which the bias mends.
    step.reciprocal = ~uint64_t{0};
    step.bias = static_cast<uint16_t>(start + kTotal - 1);
  } else {
    step.reciprocal = ~uint64_t{0} / frequency + 1;
    step.bias = static_cast<uint16_t>(start);
  }
  return step;
}

// The upper half of the product.
inline uint32_t quotient_of(uint32_t x, uint64_t reciprocal) {
  __extension__ using Product = unsigned __int128;
  return static_cast<uint32_t>(static_cast<Product>(reciprocal) * x >> 64);
}

std::vector<Step> steps_of(const Model& model) {
  std::vector<Step> steps(model.tables.size() * kSymbols);
  for (size_t k = 0; k < model.tables.size(); ++k) {
    uint32_t start = 0;
    for (size_t s = 0; s < kSymbols; ++s) {
      const uint32_t frequency = model.tables[k][s];
      if (frequency > 0) steps[k * kSymbols + s] = step_of(start, frequency);
      start += frequency;
    }
  }
  return steps;
}

}  // namespace

// A state takes 4 bytes. A stream has another one for each so many bytes of symbols.
constexpr double kBytesOfState = 640;

size_t states_for(double bytes) {
  size_t states = 1;
  while (states < kMostStates && bytes >= kBytesOfState * 2 * static_cast<double>(states)) {
    states *= 2;
  }
  return states;
}

size_t states_for(double bytes, size_t row) {
  size_t states = states_for(bytes);
  // States that a row does not reach do nothing; eight are read at once.
  while (states > 8 && 2 * states > row) states /= 2;
  return states;
}

bool are_states(size_t states) {
  return states > 0 && states <= kMostStates && (states & (states - 1)) == 0;
}

void encode(const uint8_t* symbols, const uint8_t* tables, std::span<const uint32_t> rows,
            const Model& model, size_t states, std::vector<std::byte>& out) {
  const std::vector<Step> steps = steps_of(model);
  uint32_t x[kMostStates];
  std::fill_n(x, states, kLeastState);
  size_t n = 0;
  for (const uint32_t row : rows) n += row;
  // From the last symbol to the first: words come out in reverse, too.
  std::vector<uint16_t> words(n + 1);
  uint16_t* at = words.data() + n;  // where the next goes
  for (size_t row = rows.size(); row-- > 0;) {
    n -= rows[row];
    for (size_t i = rows[row]; i-- > 0;) {
      const Step& step = steps[tables[n + i] * kSymbols + symbols[n + i]];
      uint32_t state = x[i & (states - 1)];
      // Without a branch that nobody can predict.
      const bool full = state >= step.limit;
      *at = static_cast<uint16_t>(state);
      at -= full ? 1 : 0;
      state = full ? state >> 16 : state;
      x[i & (states - 1)] =
          state + step.bias + quotient_of(state, step.reciprocal) * step.complement;
    }
  }
  const auto* first = at + 1;
  const size_t bytes = 2 * static_cast<size_t>(words.data() + words.size() - first);
  const size_t begin = out.size();
  out.resize(begin + 4 * states + bytes);
  std::memcpy(out.data() + begin, x, 4 * states);
  std::memcpy(out.data() + begin + 4 * states, first, bytes);
}

Reader::Reader(const Model& model, size_t states, std::span<const std::byte> in)
    : states_count_(states), slots_(new uint32_t[model.tables.size() * kTotal]) {
  if (in.size() < 4 * states || in.size() % 2 != 0) {
    throw PayloadError(str_of("coded symbols have ", in.size(),
                              " bytes, allowed: even numbers from ", 4 * states, " on"));
  }
  std::memcpy(states_, in.data(), 4 * states);
  if (std::any_of(states_, states_ + states,
                  [](uint32_t state) { return state < kLeastState || state >> 31 != 0; })) {
    throw PayloadError("a state of coded symbols is not from 2^15 to 2^31");
  }
  stream_ = {states_, in.data() + 4 * states, in.data() + in.size()};
  for (size_t context = 0; context < kMostContexts; ++context) {
    const size_t known = std::min(context, model.contexts - 1);
    table_of_[context] = model.table_of[known] * kTotal;
  }
  for (size_t k = 0; k < model.tables.size(); ++k) {
    uint32_t* slot = &slots_[k * kTotal];
    for (uint32_t s = 0; s < kSymbols; ++s) {
      const uint32_t frequency = model.tables[k][s];
      for (uint32_t i = 0; i < frequency; ++i) *slot++ = s << 24 | (frequency - 1) << 12 | i;
    }
  }
}

void Reader::read(const uint8_t* tables, size_t n, uint8_t* symbols) {
  loops().read(stream_, states_count_, slots_.get(), tables, n, symbols);
}

void Reader::read_windows(size_t n, uint8_t center, int shift, uint8_t* symbols) {
  loops().read_windows(stream_, states_count_, slots_.get(), table_of_, n, center, shift, symbols);
}

void Reader::finish() const {
  const bool ended = std::all_of(states_, states_ + states_count_,
                                 [](uint32_t state) { return state == kLeastState; });
  if (stream_.cut || stream_.at != stream_.end || !ended) {
    throw PayloadError("coded symbols do not end where their words end");
  }
}

}  // namespace cgx::bounded::ans
