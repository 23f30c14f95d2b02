#include "codec/bounded/ans/model.h"

#include <algorithm>
#include <bit>

#include "codec/bounded/bits.h"
#include "codec/bounded/element.h"
#include "codec/bounded/logarithm.h"

namespace cgx::bounded::ans {
namespace {

// What a symbol takes in a table that is written, about.
constexpr double kSymbolBits = 6, kTableBits = 20;
// Significant bits of a written frequency. Three cost less than 0.1 % of the symbols.
constexpr int kKept = 3;

// Changes 0, -1, 1, -2 ... are one zero more each, and a one.
void put_change(BitWriter& bits, int change) {
  const int folded = change < 0 ? -2 * change - 1 : 2 * change;
  bits.put(uint64_t{1} << folded, folded + 1);
}
int get_change(BitReader& bits) {
  int folded = 0;
  while (bits.get(1) == 0) {
    if (++folded > 2 * kTotalBits + 2) throw PayloadError("a table of frequencies has a gap");
  }
  return folded % 2 == 1 ? -(folded + 1) / 2 : folded / 2;
}

// A frequency as it is written: its length in bits, and its highest bits behind the first.
struct Written {
  int length = 0;
  uint32_t rest = 0;
  static int rest_bits(int length) { return std::clamp(length - 1, 0, kKept - 1); }
  uint32_t value() const {
    if (length == 0) return 0;
    return ((1u << rest_bits(length)) | rest) << (length - 1 - rest_bits(length));
  }
};

Written written_of(uint32_t frequency) {
  if (frequency == 0) return {};
  const int length = static_cast<int>(std::bit_width(frequency));
  const int rest = Written::rest_bits(length);
  return {length, (frequency >> (length - 1 - rest)) & ((1u << rest) - 1)};
}

// Frequencies that sum up to kTotal, of numbers that sum up to about that. Where these are too
// many, the greatest gives: at least one symbol has more than its share.
void balance(std::array<uint32_t, kSymbols>& numbers) {
  uint64_t sum = 0;
  for (const uint32_t number : numbers) sum += number;
  if (sum == 0) return;
  uint32_t total = 0;
  for (uint32_t& number : numbers) {
    if (number == 0) continue;
    number = std::max<uint32_t>(1, static_cast<uint32_t>(number * uint64_t{kTotal} / sum));
    total += number;
  }
  while (total != kTotal) {
    auto greatest = std::max_element(numbers.begin(), numbers.end());
    if (total < kTotal) {
      *greatest += kTotal - total;
      return;
    }
    const uint32_t taken = std::min(total - kTotal, (*greatest + 1) / 2);
    *greatest -= taken;
    total -= taken;
  }
}

// Adds the table that a reader makes of these numbers.
void add_table(Model& model, std::array<uint32_t, kSymbols> numbers) {
  const auto narrow = [&] {
    Frequencies out;
    for (size_t s = 0; s < kSymbols; ++s) out[s] = static_cast<uint16_t>(numbers[s]);
    return out;
  };
  model.written.push_back(narrow());
  balance(numbers);
  model.tables.push_back(narrow());
}

// The same from counts, which are written in few bits.
void add_counts(Model& model, const Counts& counts) {
  std::array<uint32_t, kSymbols> numbers = counts;
  balance(numbers);
  for (uint32_t& number : numbers) number = written_of(number).value();
  add_table(model, numbers);
}

// Contexts that share a table. Symbols outside of [first, last] do not occur.
struct Group {
  Counts counts;
  size_t first, last;
  uint32_t total;
  double bits;
  size_t contexts;
};

// What the symbols take, and the table.
double cost_of(const Group& group) {
  double sum = 0;
  size_t symbols = 0;
  for (size_t s = group.first; s <= group.last; ++s) {
    if (group.counts[s] == 0) continue;
    sum += weight_of(group.counts[s]);
    ++symbols;
  }
  return weight_of(group.total) - sum + kSymbolBits * static_cast<double>(symbols) + kTableBits;
}

Group united(const Group& a, const Group& b) {
  Group both{a.counts, std::min(a.first, b.first), std::max(a.last, b.last), a.total + b.total,
             0,        a.contexts + b.contexts};
  for (size_t s = b.first; s <= b.last; ++s) both.counts[s] += b.counts[s];
  both.bits = cost_of(both);
  return both;
}

// Groups of one context each, but for those of few symbols, which go with the one before.
std::vector<Group> groups_of(std::span<const Counts> counts) {
  constexpr uint32_t kFew = 48;
  std::vector<Group> groups;
  size_t empty = 0;  // contexts without symbols go with the next that has some
  for (const Counts& one : counts) {
    size_t first = kSymbols, last = 0;
    uint32_t total = 0;
    for (size_t s = 0; s < kSymbols; ++s) {
      if (one[s] == 0) continue;
      first = std::min(first, s);
      last = s;
      total += one[s];
    }
    if (total == 0) {
      ++empty;
      continue;
    }
    const Group group{one, first, last, total, 0, 1 + empty};
    empty = 0;
    if (!groups.empty() && (total < kFew || groups.back().total < kFew)) {
      groups.back() = united(groups.back(), group);
    } else {
      groups.push_back(group);
      groups.back().bits = cost_of(group);
    }
  }
  groups.back().contexts += empty;
  return groups;
}

}  // namespace

TablesOf::TablesOf(std::span<const uint8_t> table_of) {
  for (size_t k = 0; k < from_.size(); ++k) {
    const auto first = std::upper_bound(table_of.begin(), table_of.end(), static_cast<uint8_t>(k));
    // No context is so great.
    from_[k] =
        first == table_of.end() ? uint8_t{255} : static_cast<uint8_t>(first - table_of.begin());
  }
}

void TablesOf::map(const uint8_t* contexts, size_t n, uint8_t* out) const {
  const auto from = from_;
  // Each value by itself: it may be done in place, and in vectors.
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    uint8_t table = 0;
    for (const uint8_t first : from) table = static_cast<uint8_t>(table + (contexts[i] >= first));
    out[i] = table;
  }
}

double entropy_of(const Counts& counts) {
  double sum = 0;
  uint32_t total = 0;
  for (const uint32_t count : counts) {
    if (count == 0) continue;
    sum += weight_of(count);
    total += count;
  }
  return weight_of(total) - sum;
}

Fitted fit(std::span<const Counts> counts) {
  std::vector<Group> groups = groups_of(counts);
  // Neighbours are united as long as it pays: the pair that saves most comes first.
  std::vector<Group> pairs;
  for (size_t i = 0; i + 1 < groups.size(); ++i) pairs.push_back(united(groups[i], groups[i + 1]));
  while (groups.size() > 1) {
    size_t best = 0;
    double saved = -1e300;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const double saves = groups[i].bits + groups[i + 1].bits - pairs[i].bits;
      if (saves > saved) {
        saved = saves;
        best = i;
      }
    }
    if (saved <= 0 && groups.size() <= kMostTables) break;
    const auto at = static_cast<std::ptrdiff_t>(best);
    groups[best] = pairs[best];
    groups.erase(groups.begin() + at + 1);
    pairs.erase(pairs.begin() + at);
    if (best > 0) pairs[best - 1] = united(groups[best - 1], groups[best]);
    if (best + 1 < groups.size()) pairs[best] = united(groups[best], groups[best + 1]);
  }
  Fitted fitted;
  fitted.model.contexts = counts.size();
  size_t context = 0;
  for (const Group& group : groups) {
    for (size_t i = 0; i < group.contexts; ++i) {
      fitted.model.table_of[context++] = static_cast<uint8_t>(fitted.model.tables.size());
    }
    add_counts(fitted.model, group.counts);
    fitted.bits += group.bits;
  }
  return fitted;
}

void Model::write(std::vector<std::byte>& out) const {
  out.push_back(static_cast<std::byte>(contexts));
  out.push_back(static_cast<std::byte>(tables.size()));
  BitWriter bits;
  for (size_t context = 1; context < contexts; ++context) {
    bits.put(table_of[context] != table_of[context - 1] ? 1 : 0, 1);
  }
  for (const Frequencies& table : written) {
    size_t first = 0, last = kSymbols - 1;
    while (table[first] == 0) ++first;
    while (table[last] == 0) --last;
    bits.put(first, 8);
    bits.put(last, 8);
    int before = kTotalBits / 2;
    for (size_t s = first; s <= last; ++s) {
      const Written one = written_of(table[s]);
      put_change(bits, one.length - before);
      bits.put(one.rest, Written::rest_bits(one.length));
      before = one.length;
    }
  }
  bits.finish(out);
}

Model Model::read(std::span<const std::byte>& in) {
  if (in.size() < 2) throw PayloadError("a model of symbols is cut");
  Model model;
  model.contexts = static_cast<size_t>(in[0]);
  const auto count = static_cast<size_t>(in[1]);
  if (model.contexts < 1 || model.contexts > kMostContexts || count < 1 || count > kMostTables) {
    throw PayloadError(str_of("a model has ", model.contexts, " contexts and ", count,
                              " tables, allowed: 1 to ", kMostContexts, ", 1 to ", kMostTables));
  }
  in = in.subspan(2);
  BitReader bits(in);
  size_t table = 0;
  for (size_t context = 1; context < model.contexts; ++context) {
    table += bits.get(1);
    model.table_of[context] = static_cast<uint8_t>(table);
  }
  if (table + 1 != count) {
    throw PayloadError(str_of("the contexts of a model have ", table + 1, " tables of ", count));
  }
  for (size_t k = 0; k < count; ++k) {
    const size_t first = bits.get(8), last = bits.get(8);
    std::array<uint32_t, kSymbols> numbers{};
    int length = kTotalBits / 2;
    bool any = false;
    for (size_t s = first; s <= last; ++s) {
      length += get_change(bits);
      if (length < 0 || length > kTotalBits + 1) {
        throw PayloadError(
            str_of("a frequency has ", length, " bits, allowed: 0 to ", kTotalBits + 1));
      }
      const uint64_t rest = bits.get(Written::rest_bits(length));
      numbers[s] = Written{length, static_cast<uint32_t>(rest)}.value();
      any = any || length > 0;
    }
    if (!any) throw PayloadError("a table of frequencies is empty");
    add_table(model, numbers);
  }
  if (bits.bytes() > in.size()) throw PayloadError("a model of symbols is cut");
  if (!bits.rest_is_zero()) throw PayloadError("a model of symbols goes on behind its end");
  in = in.subspan(bits.bytes());
  return model;
}

}  // namespace cgx::bounded::ans
