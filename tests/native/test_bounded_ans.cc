// Coded symbols of the error-bounded compressor: models, streams, windows.
#include <algorithm>
#include <numeric>

#include "bounded_blocks.h"
#include "codec/bounded/ans/coder.h"
#include "codec/bounded/ans/window.h"
#include "codec/bounded/ans/windowed.h"
#include "data.h"

namespace cgx::native {
namespace {

using namespace bounded::ans;
using bounded::PayloadError;

// Counts of contexts whose symbols lie around one of their own, closer or wider.
std::vector<Counts> random_counts(size_t contexts, Random& random) {
  std::vector<Counts> counts(contexts, Counts{});
  for (Counts& one : counts) {
    if (random(6) == 0) continue;
    const uint64_t total = random(2000), width = 1 + random(random(2) == 0 ? 8 : 256);
    const uint64_t first = random(256 - width + 1);
    for (uint64_t i = 0; i < total; ++i) {
      ++one[first + std::min(random(width), random(width))];
    }
  }
  counts[random(contexts)][random(256)] += 1;  // there is one
  return counts;
}

Model model_of(const std::vector<Counts>& counts) { return fit(counts).model; }

// Rows of symbols that the model has, and their tables.
struct Rows {
  std::vector<uint32_t> lengths;
  std::vector<uint8_t> symbols, tables;
};

Rows random_rows(const Model& model, size_t rows, size_t most, Random& random) {
  Rows made;
  for (size_t row = 0; row < rows; ++row) {
    made.lengths.push_back(static_cast<uint32_t>(random(most + 1)));
    for (uint32_t i = 0; i < made.lengths.back(); ++i) {
      const size_t table = random(model.tables.size());
      // By the frequencies, or any that is there.
      uint64_t place = random(kTotal);
      size_t symbol = 0;
      while (place >= model.tables[table][symbol]) place -= model.tables[table][symbol++];
      for (size_t some = random(256); random(8) == 0; some = random(256)) {
        if (model.tables[table][some] > 0) symbol = some;
      }
      made.symbols.push_back(static_cast<uint8_t>(symbol));
      made.tables.push_back(static_cast<uint8_t>(table));
    }
  }
  return made;
}

// The symbols that a reader finds, or the text of its error.
std::string read(const Model& model, size_t states, std::span<const std::byte> in, const Rows& rows,
                 std::vector<uint8_t>& symbols) {
  const ExactBytes exact(in, in.size() % 3);
  symbols.assign(rows.symbols.size() + Reader::kRoom, 0);
  std::vector<uint8_t> tables = rows.tables;
  tables.resize(tables.size() + Reader::kRoom);
  try {
    Reader reader(model, states, exact.span());
    size_t at = 0;
    for (const uint32_t length : rows.lengths) {
      reader.read(tables.data() + at, length, symbols.data() + at);
      at += length;
    }
    reader.finish();
  } catch (const PayloadError& error) {
    return error.what();
  }
  symbols.resize(rows.symbols.size());
  return "";
}

std::string read_window(std::span<const std::byte> in, size_t n, uint8_t center,
                        std::vector<uint8_t>& symbols) {
  const ExactBytes exact(in, in.size() % 3);
  symbols.assign(n, 0);
  try {
    read_windowed(exact.span(), n, center, symbols.data());
  } catch (const PayloadError& error) {
    return error.what();
  }
  return "";
}

// The same everywhere, of any bytes. True: there are symbols.
bool check_window(std::span<const std::byte> in, size_t n, uint8_t center,
                  std::vector<uint8_t>& symbols) {
  std::optional<std::string> first;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    std::vector<uint8_t> found;
    const std::string error = read_window(in, n, center, found);
    if (!first) {
      first = error;
      symbols = found;
    }
    CHECK(error == *first, level, ": ", error, ", not ", *first);
    CHECK(!error.empty() || found == symbols, level);
  }
  return first->empty();
}

// Symbols of which large ones keep together.
std::vector<uint8_t> heaps(size_t n, uint8_t center, Random& random) {
  std::vector<uint8_t> symbols(n);
  uint64_t width = 1;
  for (uint8_t& symbol : symbols) {
    if (random(60) == 0) width = 1 + random(random(2) == 0 ? 6 : 256);
    symbol = static_cast<uint8_t>(center + random(width) - width / 2);
  }
  return symbols;
}

// What Windowed writes, by any number of states and any window.
Block windows_of(const std::vector<uint8_t>& symbols, uint8_t center, size_t states, int shift) {
  const size_t n = symbols.size(), each = n / states;
  std::vector<uint8_t> ordered, contexts;
  std::vector<uint32_t> means(states);
  for (size_t i = 0; i < each; ++i) {
    for (size_t k = 0; k < states; ++k) {
      const uint8_t symbol = symbols[k * each + i];
      ordered.push_back(symbol);
      contexts.push_back(static_cast<uint8_t>(context_of(means[k])));
      means[k] = after(means[k], size_of_symbol(symbol, center), shift);
      CHECK(means[k] < 65534);
    }
  }
  for (size_t i = each * states; i < n; ++i) {
    ordered.push_back(symbols[i]);
    contexts.push_back(0);
  }
  std::vector<Counts> counts(kWindowContexts, Counts{});
  for (size_t i = 0; i < n; ++i) ++counts[contexts[i]][ordered[i]];
  const Model model = model_of(counts);
  for (uint8_t& context : contexts) context = model.table_of[context];
  Block made{static_cast<std::byte>(shift), static_cast<std::byte>(states)};
  model.write(made);
  const auto row = static_cast<uint32_t>(n);
  encode(ordered.data(), contexts.data(), {&row, 1}, model, states, made);
  return made;
}

}  // namespace

TEST(bounded_ans_models_come_back) {
  Random random(1);
  for (int turn = 0; turn < 80; ++turn) {
    const size_t contexts = 1 + random(kMostContexts);
    const auto counts = random_counts(contexts, random);
    const Model model = model_of(counts);
    CHECK(model.contexts == contexts && model.tables.size() <= kMostTables);
    for (size_t context = 0; context < contexts; ++context) {
      const Frequencies& table = model.tables[model.table_of[context]];
      for (size_t s = 0; s < kSymbols; ++s) CHECK(counts[context][s] == 0 || table[s] > 0);
    }
    Block made;
    model.write(made);
    const size_t length = made.size();
    made.push_back(std::byte{9});
    std::span<const std::byte> in = made;
    const Model found = Model::read(in);
    CHECK(in.size() == 1 && found.contexts == contexts && found.table_of == model.table_of);
    CHECK(found.tables == model.tables);
    for (const Frequencies& table : found.tables) {
      CHECK(std::accumulate(table.begin(), table.end(), 0u) == kTotal);
    }
    for (size_t size = 0; size < length; ++size) {
      const ExactBytes cut({made.data(), size}, 0);
      in = cut.span();
      error_of<PayloadError>([&] { Model::read(in); });
    }
    for (int k = 0; k < 30; ++k) {
      Block other = made;
      other[random(length)] ^= static_cast<std::byte>(1 << random(8));
      in = other;
      try {
        for (const Frequencies& table : Model::read(in).tables) {
          CHECK(std::accumulate(table.begin(), table.end(), 0u) == kTotal);
        }
      } catch (const PayloadError&) {
      }
    }
  }
}

// All frequencies a table may have: one symbol alone, or 256 of them.
TEST(bounded_ans_tables_at_their_ends) {
  for (const size_t symbols : {1, 2, 3, 255, 256}) {
    for (const uint32_t greatest : {1u, 1000u, 1u << 23}) {
      std::vector<Counts> counts(1, Counts{});
      for (size_t s = 0; s < symbols; ++s)
        counts[0][s * 255 / std::max<size_t>(symbols - 1, 1)] = 1;
      counts[0][0] = greatest;
      const Model model = model_of(counts);
      const Frequencies& table = model.tables[0];
      CHECK(std::accumulate(table.begin(), table.end(), 0u) == kTotal);
      Rows rows;
      for (size_t s = 0; s < kSymbols; ++s) {
        if (table[s] == 0) continue;
        for (int k = 0; k < 20; ++k) rows.symbols.push_back(static_cast<uint8_t>(s));
      }
      rows.tables.resize(rows.symbols.size());
      rows.lengths = {static_cast<uint32_t>(rows.symbols.size())};
      for (size_t states = 1; states <= kMostStates; states *= 2) {
        Block made;
        encode(rows.symbols.data(), rows.tables.data(), rows.lengths, model, states, made);
        for (const std::string& level : simd_levels()) {
          const AtSimdLevel at(level);
          std::vector<uint8_t> found;
          const std::string error = read(model, states, made, rows, found);
          CHECK(error.empty() && found == rows.symbols, error);
        }
      }
    }
  }
}

TEST(bounded_ans_rows_come_back) {
  Random random(2);
  for (int turn = 0; turn < 40; ++turn) {
    const Model model = model_of(random_counts(1 + random(kMostContexts), random));
    const size_t most = turn % 3 == 0 ? 3 : turn % 3 == 1 ? 70 : 1000;
    const Rows rows = random_rows(model, 1 + random(20), most, random);
    for (size_t states = 1; states <= kMostStates; states *= 2) {
      Block made;
      encode(rows.symbols.data(), rows.tables.data(), rows.lengths, model, states, made);
      std::vector<uint8_t> first;
      for (const std::string& level : simd_levels()) {
        const AtSimdLevel at(level);
        std::vector<uint8_t> found;
        std::string error = read(model, states, made, rows, found);
        CHECK(error.empty() && found == rows.symbols, states, " states, ", level, ": ", error);
        for (const size_t size :
             {size_t{0}, random(made.size()), made.size() - 2, made.size() - 1}) {
          error = read(model, states, {made.data(), size}, rows, found);
          CHECK(!error.empty(), "cut to ", size);
        }
        Block longer = made;
        longer.resize(made.size() + 2);
        CHECK(!read(model, states, longer, rows, found).empty());
      }
      for (int k = 0; k < 10; ++k) {
        Block other = made;
        other[random(other.size())] ^= static_cast<std::byte>(1 << random(8));
        std::optional<std::pair<std::string, std::vector<uint8_t>>> expected;
        for (const std::string& level : simd_levels()) {
          const AtSimdLevel at(level);
          std::pair<std::string, std::vector<uint8_t>> found;
          found.first = read(model, states, other, rows, found.second);
          if (!found.first.empty()) found.second.clear();
          if (!expected) expected = found;
          CHECK(found == *expected, states, " states, ", level, ": ", found.first);
        }
      }
    }
  }
}

TEST(bounded_ans_windows_come_back) {
  Random random(3);
  for (const size_t n : {1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000, 3001}) {
    for (size_t states = 1; states <= kMostStates; states *= 2) {
      for (int shift = 1; shift <= 6; ++shift) {
        const auto center = static_cast<uint8_t>(random(4) == 0 ? random(256) : 128);
        const std::vector<uint8_t> symbols = heaps(n, center, random);
        const Block made = windows_of(symbols, center, states, shift);
        std::vector<uint8_t> found;
        CHECK(check_window(made, n, center, found) && found == symbols, n, " symbols, ", states);
        const size_t cut = random(made.size());
        CHECK(!check_window({made.data(), cut}, n, center, found));
        for (int k = 0; k < 6; ++k) {
          Block other = made;
          other[random(other.size())] = static_cast<std::byte>(random());
          check_window(other, n, center, found);
        }
        // Of fewer or more symbols than were written.
        for (const size_t other : {n - 1, n + 1, 2 * n}) check_window(made, other, center, found);
      }
    }
  }
}

// The greatest mean that there is has a context.
TEST(bounded_ans_windows_of_the_farthest_symbols) {
  for (int shift = 1; shift <= 6; ++shift) {
    for (const uint8_t center : {0, 255}) {
      uint32_t mean = 0;
      for (int i = 0; i < 5000; ++i) mean = after(mean, 255, shift);
      CHECK(context_of(mean) < kWindowContexts, mean);
      const std::vector<uint8_t> symbols(5000, static_cast<uint8_t>(255 - center));
      std::vector<uint8_t> found;
      CHECK(check_window(windows_of(symbols, center, 8, shift), 5000, center, found));
      CHECK(found == symbols);
    }
  }
}

TEST(bounded_ans_what_windowed_writes) {
  Random random(4);
  Windowed windows;
  for (const size_t n : {1, 5, 100, 1024, 8192, 8193, 30'000, 65'536}) {
    for (const uint8_t center : {0, 128, 200}) {
      const std::vector<uint8_t> symbols = heaps(n, center, random);
      windows.look(symbols.data(), n, center);
      Block made;
      windows.write(made);
      // What it promised, to some percent and the model.
      CHECK(std::fabs(static_cast<double>(made.size()) - windows.bytes()) <
                300 + 0.03 * static_cast<double>(made.size()),
            made.size(), " bytes, not ", windows.bytes());
      std::vector<uint8_t> found;
      CHECK(check_window(made, n, center, found) && found == symbols, n);
    }
  }
}

TEST(bounded_ans_heads_of_windows) {
  Random random(5);
  const std::vector<uint8_t> symbols = heaps(500, 128, random);
  const Block made = windows_of(symbols, 128, 4, 3);
  std::vector<uint8_t> found;
  const auto error = [&](size_t at, int value) {
    Block other = made;
    other[at] = static_cast<std::byte>(value);
    CHECK(!check_window(other, 500, 128, found));
    return read_window(other, 500, 128, found);
  };
  for (const int shift : {0, 7, 8, 255}) CHECK(contains(error(0, shift), "the window"));
  for (const int states : {0, 3, 5, 33, 64, 255}) CHECK(contains(error(1, states), "states"));
  CHECK(!error(2, 29).empty() && !error(2, 31).empty());
  CHECK(contains(error(2, 0), "a model has 0 contexts"));
  CHECK(contains(error(3, 0), "0 tables"));
  CHECK(contains(error(3, 9), "9 tables"));
}

}  // namespace cgx::native
