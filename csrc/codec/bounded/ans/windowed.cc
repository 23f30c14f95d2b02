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
// Runs of symbols by which the window is chosen, and how many have each.
constexpr size_t kRuns = 4, kRun = 2048;

}  // namespace

// Estimates how many bits all symbols take, from some runs of them. Fills counts_ with the counts of
// these runs, multiplied by the share of the symbols that they are.
double Windowed::sampled(const uint8_t* symbols, size_t n, uint8_t center, int shift) {
  counts_.assign(kWindowContexts, Counts{});
  const auto take = [&](size_t first, size_t count) {
    uint32_t mean = 0;
    for (size_t i = first; i < first + count; ++i) {
      ++counts_[context_of(mean)][symbols[i]];
      mean = after(mean, size_of_symbol(symbols[i], center), shift);
    }
  };
  if (n <= kRuns * kRun) {
    take(0, n);
  } else {
    for (size_t k = 0; k < kRuns; ++k) take((n - kRun) * k / (kRuns - 1), kRun);
    const auto times = static_cast<uint32_t>(n / (kRuns * kRun));
    for (Counts& counts : counts_) {
      for (uint32_t& count : counts) count *= times;
    }
  }
  return fit(counts_).bits;
}

namespace {

double bits_of_one_table(const std::vector<Counts>& contexts) {
  Counts all{};
  for (const Counts& counts : contexts) {
    for (size_t s = 0; s < kSymbols; ++s) all[s] += counts[s];
  }
  return entropy_of(all);
}

}  // namespace

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

bool Windowed::look(const uint8_t* symbols, size_t n, uint8_t center, double share, double more) {
  double best = INFINITY;
  for (const int shift : kShifts) {
    const double bits = sampled(symbols, n, center, shift);
    if (bits >= best) continue;
    best = bits;
    shift_ = shift;
  }
  // A sample's tables fit its few symbols too well, so the estimate tends to be too low. counts_ holds the
  // counts of the last window that was tried; their sum over contexts does not depend on the window.
  if (best > share * bits_of_one_table(counts_) + 8 * more) return false;
  states_ = states_for(best / 8);
  take_turns(symbols, n, center);
  Fitted fitted = fit(counts_);
  model_ = std::move(fitted.model);
  bytes_ = fitted.bits / 8 + 4 * static_cast<double>(states_) + 4;
  plain_ = bits_of_one_table(counts_) / 8;
  return true;
}

void Windowed::write(std::vector<std::byte>& out) const {
  out.push_back(static_cast<std::byte>(shift_));
  out.push_back(static_cast<std::byte>(states_));
  model_.write(out);
  std::vector<uint8_t> tables(contexts_.size());
  TablesOf(std::span(model_.table_of).first(kWindowContexts))
      .map(contexts_.data(), contexts_.size(), tables.data());
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
