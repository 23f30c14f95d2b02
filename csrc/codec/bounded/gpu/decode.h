// Decodes the parts of a block. Safe for any parts: a part that does not follow the format sets the
// block's fault, and no access leaves the block.
#pragma once

#include "codec/bounded/gpu/values.h"

namespace cgx::bounded::on_gpu {

template <typename Word>
struct DecodeMemory {
  Word words[kStep];
  Word own[kThreads], spare[kThreads];
  Word last, last_step;  // of the step before
  uint32_t ranks[kThreads], spare_ranks[kThreads];
  uint8_t faults[kThreads];  // 1: a thread found that its parts do not fit
  uint32_t any[kWarps];      // of any_phase()
  uint32_t outliers;         // so far
};

/// words[i] becomes the sum of all up to it and of `before`, which becomes the last one.
template <typename Word, typename Block>
CGX_HD void running_sums(Block& block, DecodeMemory<Word>& memory, uint32_t n, Word& before) {
  block.phase([&](uint32_t t) {
    Word sum = 0;
    for (uint32_t k = 0; k < kEach && t * kEach + k < n; ++k) {
      sum = plus(sum, memory.words[t * kEach + k]);
    }
    memory.own[t] = sum;
  });
  scan(block, memory.own, memory.spare, [](Word a, Word b) { return plus(a, b); });
  block.phase([&](uint32_t t) {
    Word sum = plus(before, t > 0 ? memory.own[t - 1] : Word{0});
    for (uint32_t k = 0; k < kEach && t * kEach + k < n; ++k) {
      Word& word = memory.words[t * kEach + k];
      word = sum = plus(sum, word);
    }
  });
  block.phase([&](uint32_t t) {
    if (t == 0) before = memory.words[n - 1];
  });
}

/// Whether place i is one of the ascending places.
CGX_HD bool is_listed(const uint16_t* places, uint32_t count, uint32_t i) {
  uint32_t from = 0, to = count;
  while (from < to) {
    const uint32_t middle = (from + to) / 2;
    if (places[middle] == i) return true;
    if (places[middle] < i) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  return false;
}

/// Writes value i of the block, if it is wanted.
template <typename Word>
CGX_HD void put(const BlocksCall& call, const BlockForm& form, uint32_t i, Word bits) {
  if (i < form.from || i >= form.to) return;
  store(call.type, call.y, static_cast<uint64_t>(form.value + static_cast<int64_t>(i)), bits);
}

/// Thread t's share of a block of values as they are, or of one value; Bits: of a value.
template <typename Bits>
CGX_HD void put_plain(const BlocksCall& call, const BlockForm& form, const unsigned char* values,
                      uint32_t t) {
  const auto* const from = reinterpret_cast<const Bits*>(values);
  auto* const to = reinterpret_cast<Bits*>(call.y);
  const bool constant = form.map == Map::kConstant;
  for (uint32_t at = form.from + t; at < form.to; at += kThreads) {
    to[form.value + static_cast<int64_t>(at)] = constant ? static_cast<Bits>(form.base) : from[at];
  }
}

template <typename Word, typename Block>
CGX_HD void decode_symbols(Block& block, DecodeMemory<Word>& memory, const BlocksCall& call,
                           const BlockForm& form) {
  using U = typename Of<Word>::Unsigned;
  const unsigned char* const in = call.parts + form.parts;
  const Parts parts = parts_of(form, call.type.bytes);
  const auto* const outliers = reinterpret_cast<const Word*>(in + parts.outliers);
  const auto* const nodes = reinterpret_cast<const int32_t*>(in + parts.nodes);
  const uint32_t width = form.width, whole = width / 8;
  const auto* const places = reinterpret_cast<const uint16_t*>(in + parts.places);
  for (uint32_t first = 0; first < form.n; first += kStep) {
    const uint32_t n = form.n - first < kStep ? form.n - first : kStep;
    const bool outlier = block.any_phase(memory.any, [&](uint32_t t) {
      uint32_t found = 0;
      for (uint32_t k = 0; k < kEach && t * kEach + k < n; ++k) {
        const uint32_t i = first + t * kEach + k;
        const uint8_t symbol = in[parts.symbols + i];
        found += symbol == kOutlier ? 1 : 0;
        U rest = 0;
        CGX_LOOP for (uint32_t plane = 0; plane < whole; ++plane) {
          const U byte = in[parts.bytes + static_cast<uint64_t>(plane) * parts.stride + i];
          rest += byte << (8 * plane);
        }
        CGX_LOOP for (uint32_t plane = 0; plane < width % 8; ++plane) {
          const U bit =
              in[parts.bits + static_cast<uint64_t>(plane) * (parts.stride / 8) + i / 8] >> i % 8 &
              1u;
          rest += bit << (8 * whole + plane);
        }
        memory.words[t * kEach + k] =
            static_cast<Word>((static_cast<U>(symbol) << width) + static_cast<U>(form.base) + rest);
      }
      memory.ranks[t] = found;
      return found != 0;
    });
    if (outlier) {
      scan(block, memory.ranks, memory.spare_ranks, Add{});
      block.phase([&](uint32_t t) {
        uint32_t number = memory.outliers + (t > 0 ? memory.ranks[t - 1] : 0);
        for (uint32_t k = 0; k < kEach && t * kEach + k < n; ++k) {
          if (in[parts.symbols + first + t * kEach + k] != kOutlier) continue;
          if (number < form.outliers) memory.words[t * kEach + k] = outliers[number];
          ++number;
        }
      });
      block.phase([&](uint32_t t) {
        if (t == 0) memory.outliers += memory.ranks[kThreads - 1];
      });
    }
    if (form.predictor == Predictor::kLine) running_sums(block, memory, n, memory.last_step);
    if (form.predictor == Predictor::kLine || form.predictor == Predictor::kPrevious) {
      running_sums(block, memory, n, memory.last);
    }
    block.phase([&](uint32_t t) {
      for (uint32_t k = 0; k < kEach && t * kEach + k < n; ++k) {
        const uint32_t i = first + t * kEach + k;
        Word word = memory.words[t * kEach + k], bits;
        const bool negative = form.signed_zero != 0 && word < 0;
        if (negative) word = plus(word, Word{1});
        const double fit = form.predictor == Predictor::kCurve
                               ? draw(call.draw, nodes + i / kCurveRun * kCurveNodes, i % kCurveRun)
                               : 0;
        bool fits = from_word(call, form, word, fit, bits);
        if (form.map == Map::kGrid && !is_finite(call.type, bits)) {
          fits = fits && is_listed(places, form.specials, i);
        }
        if (negative) bits |= static_cast<Word>(call.type.layout.sign);
        if (!fits) memory.faults[t] = 1;
        put(call, form, i, bits);
      }
    });
  }
  block.phase([&](uint32_t t) {
    if (t == 0 && memory.outliers != form.outliers) memory.faults[t] = 1;
    CGX_LOOP for (uint32_t k = t; k < form.specials; k += kThreads) {
      if (places[k] >= form.n || (k > 0 && places[k] <= places[k - 1])) {
        memory.faults[t] = 1;
      } else {
        if (places[k] < form.from || places[k] >= form.to) continue;
        store_number(call.type, call.y,
                     static_cast<uint64_t>(form.value + static_cast<int64_t>(places[k])),
                     load_number<Word>(call.type, in + parts.specials, k));
      }
    }
  });
}

/// Block number i of the call.
template <typename Word, typename Block>
CGX_HD void decode_stage(Block& block, DecodeMemory<Word>& memory, const BlocksCall& call,
                         uint64_t i) {
  const BlockForm& form = call.forms[i];
  block.phase([&](uint32_t t) {
    memory.faults[t] = 0;
    if (t != 0) return;
    memory.last = memory.last_step = 0;
    memory.outliers = 0;
  });
  if (form.map > Map::kConstant) {
    decode_symbols(block, memory, call, form);
  } else {
    const Parts parts = parts_of(form, call.type.bytes);
    const unsigned char* const values = call.parts + form.parts + parts.symbols;
    block.phase([&](uint32_t t) {
      if constexpr (sizeof(Word) == 8) {
        put_plain<uint64_t>(call, form, values, t);
      } else if (call.type.bytes == 4) {
        put_plain<uint32_t>(call, form, values, t);
      } else if (call.type.bytes == 2) {
        put_plain<uint16_t>(call, form, values, t);
      } else {
        put_plain<uint8_t>(call, form, values, t);
      }
    });
    if (sizeof(Word) == 4 && call.type.is_bool != 0) {
      block.phase([&](uint32_t t) {
        const uint32_t n = form.map == Map::kConstant ? 1 : form.n;
        CGX_LOOP for (uint32_t at = t; at < n; at += kThreads) {
          const int64_t value = form.map == Map::kConstant ? form.base : values[at];
          if (value > 1) memory.faults[t] = 1;
        }
      });
    }
  }
  const bool fault = block.any_phase(memory.any, [&](uint32_t t) { return memory.faults[t] != 0; });
  block.phase([&](uint32_t t) {
    if (t == 0 && fault) call.faults[i] = 1;
  });
}

}  // namespace cgx::bounded::on_gpu
