// Encodes the values of a block into its parts: words, residuals, symbols and low bits.
#pragma once

#include "codec/bounded/gpu/values.h"

namespace cgx::bounded::on_gpu {

template <typename Word>
struct EncodeMemory {
  Word words[2 + kStep];  // after the last two of the step before
  Word before;            // the last word of an ordinary value, before add_signed_zeros()
  uint32_t own[kThreads], spare[kThreads];
  uint8_t codes[kStep];     // bits that go to planes of bits
  uint8_t found[kThreads];  // of a thread's values, bit k: is special, or an outlier
  int32_t nodes[kStep / kCurveRun + 1][kCurveNodes];  // the first: of the run before
  uint8_t fits[kStep / kCurveRun][kCurveNodes];
  uint32_t any[kWarps];         // of any_phase()
  uint32_t specials, outliers;  // so far
};

/// State of a step, which takes values [first, first + n) of its block, n <= kStep.
template <typename Word>
struct Step {
  const BlocksCall& call;
  const BlockForm& form;
  EncodeMemory<Word>& memory;
  const Parts parts;
  const unsigned char* const x;  // the block's
  unsigned char* const out;      // the block's parts
  uint32_t first = 0, n = 0;
};

/// Nodes of the curves of a step; runs that have none go on with those before.
template <typename Word, typename Block>
CGX_HD void fit_curves(Block& block, const Step<Word>& step) {
  EncodeMemory<Word>& memory = step.memory;
  const uint32_t runs = (step.n + kCurveRun - 1) / kCurveRun;
  block.phase([&](uint32_t t) {
    const uint32_t run = t / kCurveNodes, k = t % kCurveNodes;
    if (run >= runs) return;
    const uint32_t from = run * kCurveRun, left = step.n - from;
    const double* const fit = step.call.fit + k * kCurveRun;
    const auto* const values = reinterpret_cast<const Word*>(step.x) + step.first + from;
    const auto position = [&](uint32_t i) {
      return Of<Word>::number(values[i]) * step.form.inverse;
    };
    double found = 0;
    if (left < kCurveRun) {
      CGX_LOOP for (uint32_t i = 0; i < left; ++i) found += position(i);
      found = found / static_cast<double>(left) * kNodeUnit;
    } else {
      for (uint32_t i = 0; i < kCurveRun; ++i) found += fit[i] * position(i);
    }
    memory.fits[run][k] = magnitude(found) < kMostNode ? 1 : 0;
    // Rounded to the nearest, ties to even.
    memory.nodes[run + 1][k] = word_of<int32_t>(found + kRounder);
  });
  block.phase([&](uint32_t t) {
    if (t != 0) return;
    auto* const nodes = reinterpret_cast<int32_t*>(step.out + step.parts.nodes) +
                        step.first / kCurveRun * kCurveNodes;
    CGX_LOOP for (uint32_t run = 0; run < runs; ++run) {
      bool fits = true;
      for (uint32_t k = 0; k < kCurveNodes; ++k) fits = fits && memory.fits[run][k] != 0;
      for (uint32_t k = 0; k < kCurveNodes; ++k) {
        if (!fits) memory.nodes[run + 1][k] = memory.nodes[run][k];
        nodes[run * kCurveNodes + k] = memory.nodes[run + 1][k];
      }
    }
    for (uint32_t k = 0; k < kCurveNodes; ++k) memory.nodes[0][k] = memory.nodes[runs][k];
  });
}

template <typename Word>
CGX_HD Word value_of(const Step<Word>& step, uint32_t i) {
  return load<Word>(step.call.type, step.x, step.first + i);
}
template <typename Word>
CGX_HD Word number_of(const Step<Word>& step, uint32_t i) {
  return load_number<Word>(step.call.type, step.x, step.first + i);
}

/// Writes the words of a step's values, without room for signed zeros, and marks special values. True:
/// there is at least one.
template <typename Word, typename Block>
CGX_HD bool map_values(Block& block, const Step<Word>& step) {
  EncodeMemory<Word>& memory = step.memory;
  const BlockForm& form = step.form;
  return block.any_phase(memory.any, [&](uint32_t t) {
    uint8_t found = 0;
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t i = t * kEach + k;
      if (i >= step.n) break;
      Word bits = value_of(step, i);
      if (form.signed_zero != 0 && bits == minus_zero<Word>(step.call.type)) bits = 0;
      const bool curved = form.predictor == Predictor::kCurve;
      const double fit =
          curved ? draw(step.call.draw, memory.nodes[i / kCurveRun + 1], i % kCurveRun) : 0;
      Word word = 0;
      if (to_word(step.call, form, bits, fit, word)) {
        memory.words[2 + i] = word;
      } else {
        found = static_cast<uint8_t>(found | 1u << k);
      }
    }
    memory.found[t] = found;
    return found != 0;
  });
}

/// Numbers of what the threads have found, up to each of them.
template <typename Word, typename Block>
CGX_HD void count_found(Block& block, const Step<Word>& step) {
  EncodeMemory<Word>& memory = step.memory;
  block.phase([&](uint32_t t) {
    uint32_t count = 0;
    for (uint32_t k = 0; k < kEach; ++k) count += memory.found[t] >> k & 1;
    memory.own[t] = count;
  });
  scan(block, memory.own, memory.spare, Add{});
}

/// write(i, k): value i of the step, number k of the block's of its kind; those for which there is room.
template <typename Word, typename Block, typename Write>
CGX_HD void list_found(Block& block, const Step<Word>& step, uint32_t& so_far, uint32_t room,
                       const Write& write) {
  EncodeMemory<Word>& memory = step.memory;
  count_found(block, step);
  block.phase([&](uint32_t t) {
    uint32_t number = so_far + (t > 0 ? memory.own[t - 1] : 0);
    for (uint32_t k = 0; k < kEach; ++k) {
      if ((memory.found[t] >> k & 1) == 0) continue;
      if (number < room) write(t * kEach + k, number);
      ++number;
    }
  });
  block.phase([&](uint32_t t) {
    if (t == 0) so_far += memory.own[kThreads - 1];
  });
}

/// Special values go to their list, and get the word before.
template <typename Word, typename Block>
CGX_HD void list_specials(Block& block, const Step<Word>& step) {
  EncodeMemory<Word>& memory = step.memory;
  list_found(block, step, memory.specials, step.form.specials, [&](uint32_t i, uint32_t k) {
    reinterpret_cast<uint16_t*>(step.out + step.parts.places)[k] =
        static_cast<uint16_t>(step.first + i);
    store_number(step.call.type, step.out + step.parts.specials, k, number_of(step, i));
  });
  block.phase([&](uint32_t t) {
    uint32_t last = 0;  // one more than the place of the last word
    for (uint32_t k = 0; k < kEach && t * kEach + k < step.n; ++k) {
      if ((memory.found[t] >> k & 1) == 0) last = t * kEach + k + 1;
    }
    memory.own[t] = last;
  });
  scan(block, memory.own, memory.spare, Most{});
  block.phase([&](uint32_t t) {
    uint32_t last = t > 0 ? memory.own[t - 1] : 0;
    for (uint32_t k = 0; k < kEach && t * kEach + k < step.n; ++k) {
      const uint32_t i = t * kEach + k;
      if ((memory.found[t] >> k & 1) == 0) {
        last = i + 1;
      } else {
        memory.words[2 + i] = last > 0 ? memory.words[1 + last] : memory.before;
      }
    }
  });
}

/// Room for words of -0, as maps/signed_zero.h.
template <typename Word, typename Block>
CGX_HD void add_signed_zeros(Block& block, const Step<Word>& step) {
  EncodeMemory<Word>& memory = step.memory;
  block.phase([&](uint32_t t) {
    for (uint32_t k = 0; k < kEach && t * kEach + k < step.n; ++k) {
      const uint32_t i = t * kEach + k;
      Word& word = memory.words[2 + i];
      if (i == step.n - 1) memory.before = word;
      if (step.form.signed_zero == 0) continue;
      if (word < 0 || number_of(step, i) == minus_zero<Word>(step.call.type)) {
        word = minus(word, Word{1});
      }
    }
  });
}

template <typename Word>
CGX_HD Word residual(const Step<Word>& step, uint32_t i) {
  const Word* const word = &step.memory.words[2 + i];
  switch (step.form.predictor) {
    case Predictor::kPrevious:
      return minus(word[0], word[-1]);
    case Predictor::kLine:
      return minus(minus(word[0], word[-1]), minus(word[-1], word[-2]));
    default:
      return word[0];
  }
}

/// Residuals to symbols, planes of bytes, and the codes that planes of bits are made of. True: there is
/// at least one outlier.
template <typename Word, typename Block>
CGX_HD bool split(Block& block, const Step<Word>& step) {
  using U = typename Of<Word>::Unsigned;
  EncodeMemory<Word>& memory = step.memory;
  const uint32_t width = step.form.width;
  return block.any_phase(memory.any, [&](uint32_t t) {
    uint8_t found = 0;
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t i = t * kEach + k;
      memory.codes[i] = 0;
      if (i >= step.n) continue;
      const U rest = static_cast<U>(residual(step, i)) - static_cast<U>(step.form.base);
      const U high = rest >> width;
      const uint8_t symbol = high < kOutlier ? static_cast<uint8_t>(high) : kOutlier;
      if (symbol == kOutlier) found = static_cast<uint8_t>(found | 1u << k);
      step.out[step.parts.symbols + step.first + i] = symbol;
      CGX_LOOP for (uint32_t plane = 0; plane < width / 8; ++plane) {
        step.out[step.parts.bytes + static_cast<uint64_t>(plane) * step.parts.stride + step.first +
                 i] = static_cast<uint8_t>(rest >> (8 * plane));
      }
      if (width % 8 != 0) memory.codes[i] = static_cast<uint8_t>(rest >> (width / 8 * 8));
    }
    memory.found[t] = found;
    return found != 0;
  });
}

/// A byte of each plane holds the bits of eight values; a thread makes one of each.
template <typename Word, typename Block>
CGX_HD void write_bits(Block& block, const Step<Word>& step) {
  static_assert(kStep / 8 <= kThreads, "a thread has one byte of a plane at most");
  EncodeMemory<Word>& memory = step.memory;
  const uint32_t bytes = static_cast<uint32_t>(up(step.n, 64)) / 8;
  block.phase([&](uint32_t t) {
    if (t < bytes) {
      CGX_LOOP for (uint32_t plane = 0; plane < step.form.width % 8; ++plane) {
        uint32_t bits = 0;
        for (uint32_t k = 0; k < 8; ++k) bits |= (memory.codes[8 * t + k] >> plane & 1u) << k;
        step.out[step.parts.bits + static_cast<uint64_t>(plane) * (step.parts.stride / 8) +
                 step.first / 8 + t] = static_cast<uint8_t>(bits);
      }
    }
    if (t != 0) return;
    // What the next step's predictor needs.
    const Word last = memory.words[1 + step.n], before_last = memory.words[step.n];
    memory.words[0] = before_last;
    memory.words[1] = last;
  });
}

/// Block number i of the call.
template <typename Word, typename Block>
CGX_HD void encode_stage(Block& block, EncodeMemory<Word>& memory, const BlocksCall& call,
                         uint64_t i) {
  const BlockForm& form = call.forms[i];
  if (form.map <= Map::kConstant) return;
  Step<Word> step{call,
                  form,
                  memory,
                  parts_of(form, call.type.bytes),
                  call.x + form.value * static_cast<int64_t>(call.type.bytes),
                  call.parts + form.parts};
  block.phase([&](uint32_t t) {
    if (t != 0) return;
    memory.words[0] = memory.words[1] = memory.before = 0;
    memory.specials = memory.outliers = 0;
    for (uint32_t k = 0; k < kCurveNodes; ++k) memory.nodes[0][k] = 0;
  });
  for (; step.first < form.n; step.first += kStep) {
    step.n = form.n - step.first < kStep ? form.n - step.first : kStep;
    if (form.predictor == Predictor::kCurve) fit_curves(block, step);
    if (map_values(block, step)) list_specials(block, step);
    add_signed_zeros(block, step);
    if (split(block, step)) {
      list_found(block, step, memory.outliers, form.outliers, [&](uint32_t place, uint32_t k) {
        reinterpret_cast<Word*>(step.out + step.parts.outliers)[k] = residual(step, place);
      });
    }
    write_bits(block, step);
  }
  block.phase([&](uint32_t t) {
    if (t != 0) return;
    auto* const counts = reinterpret_cast<uint32_t*>(step.out);
    counts[0] = memory.outliers;
    counts[1] = memory.specials;
  });
}

}  // namespace cgx::bounded::on_gpu
