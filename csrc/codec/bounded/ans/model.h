// The statistical model of symbols that are coded with asymmetric numeral systems (Duda, 2013; the
// range variant, rANS): frequencies of symbols, in several tables, and which table each context has.
//
// A context is a number that reader and writer both know before a symbol: the larger, the larger the
// symbols around it. Contexts next to each other share a table where their symbols are distributed
// alike, so tables are cut out of the row of contexts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cgx::bounded::ans {

inline constexpr int kTotalBits = 12;
inline constexpr uint32_t kTotal = 1u << kTotalBits;  // the sum of a table's frequencies
inline constexpr size_t kSymbols = 256;
inline constexpr size_t kMostContexts = 64, kMostTables = 8;

using Counts = std::array<uint32_t, kSymbols>;
using Frequencies = std::array<uint16_t, kSymbols>;

struct Model {
  size_t contexts = 0;
  std::array<uint8_t, kMostContexts> table_of{};  // by context; ascending
  std::vector<Frequencies> tables;                // each sums up to kTotal
  std::vector<Frequencies> written;               // what they are made of, in few bits each

  /// Appends what read() reads.
  void write(std::vector<std::byte>& out) const;
  /// Reads what write() has written from the beginning of `in`, and takes it off. PayloadError.
  static Model read(std::span<const std::byte>& in);
};

/// Tables by contexts, where each table has contexts that follow each other, as in a model.
class TablesOf {
 public:
  TablesOf() = default;
  /// table_of: by context, up to 64.
  explicit TablesOf(std::span<const uint8_t> table_of);
  /// Of n contexts. out may be contexts.
  void map(const uint8_t* contexts, size_t n, uint8_t* out) const;

 private:
  std::array<uint8_t, kMostTables - 1> from_{};  // the first context of each table but the first
};

/// A model for symbols with these counts, by context, and what it takes.
struct Fitted {
  Model model;
  double bits = 0;  // of all symbols and of the model itself, to 0.1 % or so
};
/// counts: of 1 to kMostContexts contexts, with at least one symbol and less than 2^24.
Fitted fit(std::span<const Counts> counts);

/// sum c log2(total / c): the entropy of symbols with these counts, in bits.
double entropy_of(const Counts& counts);

}  // namespace cgx::bounded::ans
