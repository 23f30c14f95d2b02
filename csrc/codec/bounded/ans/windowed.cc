#include "codec/bounded/ans/windowed.h"

#include <algorithm>

#include "codec/bounded/ans/coder.h"
#include "codec/bounded/ans/window.h"
#include "codec/bounded/element.h"

namespace cgx::bounded::ans {
namespace {

// Windows that are tried: images have short ones, gradients long ones.
constexpr int kShifts[] = {1, 4};
constexpr int kMostShift = 6;
// Symbols by which the window is chosen.
constexpr size_t kTried = 8192;

}  // namespace

// Of these symbols, as one part.
double Windowed::bits_of(const uint8_t* symbols, size_t n, uint8_t center, int shift) {
  counts_.assign(kWindowContexts, Counts{});
  uint32_t mean = 0;
  for (size_t i = 0; i < n; ++i) {
    ++counts_[context_of(mean)][symbols[i]];
    mean = after(mean, size_of_symbol(symbols[i], center), shift);
  }
  return fit(counts_).bits;
}

// Symbols and contexts in the order of the reader, and the counts of them all.
void Windowed::take_turns(const uint8_t* symbols, size_t n, uint8_t center) {
  symbols_.resize(n);
  contexts_.resize(n);
  counts_.assign(kWindowContexts, Counts{});
  const size_t each = n / states_;
  for (size_t k = 0; k < states_; ++k) {
    const uint8_t* const part = symbols + k * each;
    uint32_t mean = 0;
    for (size_t i = 0, at = k; i < each; ++i, at += states_) {
      const uint8_t symbol = part[i];
      const uint32_t context = context_of(mean);
      symbols_[at] = symbol;
      contexts_[at] = static_cast<uint8_t>(context);
      ++counts_[context][symbol];
      mean = after(mean, size_of_symbol(symbol, center), shift_);
    }
  }
  for (size_t i = each * states_; i < n; ++i) {
    symbols_[i] = symbols[i];
    contexts_[i] = 0;
    ++counts_[0][symbols[i]];
  }
}

void Windowed::look(const uint8_t* symbols, size_t n, uint8_t center) {
  const size_t tried = std::min(n, kTried), from = (n - tried) / 2;
  double best = 1e300;
  for (const int shift : kShifts) {
    const double bits = bits_of(symbols + from, tried, center, shift);
    if (bits >= best) continue;
    best = bits;
    shift_ = shift;
  }
  states_ = states_for(best / 8 * static_cast<double>(n) / static_cast<double>(tried));
  take_turns(symbols, n, center);
  Fitted fitted = fit(counts_);
  model_ = std::move(fitted.model);
  bytes_ = fitted.bits / 8 + 4 * static_cast<double>(states_) + 4;
  Counts all{};
  for (const Counts& counts : counts_) {
    for (size_t s = 0; s < kSymbols; ++s) all[s] += counts[s];
  }
  plain_ = entropy_of(all) / 8;
}

void Windowed::write(std::vector<std::byte>& out) const {
  out.push_back(static_cast<std::byte>(shift_));
  out.push_back(static_cast<std::byte>(states_));
  model_.write(out);
  std::vector<uint8_t> tables(contexts_.size());
  std::transform(contexts_.begin(), contexts_.end(), tables.begin(),
                 [&](uint8_t context) { return model_.table_of[context]; });
  const auto n = static_cast<uint32_t>(tables.size());
  encode(symbols_.data(), tables.data(), {&n, 1}, model_, states_, out);
}

void read_windowed(std::span<const std::byte> in, size_t n, uint8_t center, uint8_t* symbols) {
  if (in.size() < 2) throw PayloadError("coded symbols are cut");
  const auto shift = static_cast<int>(in[0]);
  const auto states = static_cast<size_t>(in[1]);
  if (shift < 1 || shift > kMostShift || !are_states(states)) {
    throw PayloadError(str_of("coded symbols have the window ", shift, " and ", states,
                              " states, allowed: 1 to ", kMostShift, ", and powers of 2 up to ",
                              kMostStates));
  }
  in = in.subspan(2);
  const Model model = Model::read(in);
  if (model.contexts != kWindowContexts) {
    throw PayloadError(
        str_of("a model has ", model.contexts, " contexts, allowed here: ", kWindowContexts));
  }
  Reader reader(model, states, in);
  const size_t turns = n / states * states;
  reader.read_windows(turns, center, shift, symbols);
  // What is left is read with room behind it.
  const uint8_t tables[kMostStates + Reader::kRoom] = {};
  uint8_t left[kMostStates + Reader::kRoom];
  reader.read(tables, n - turns, left);
  std::copy_n(left, n - turns, symbols + turns);
  reader.finish();
}

}  // namespace cgx::bounded::ans
