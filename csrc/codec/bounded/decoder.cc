#include "codec/bounded/decoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/crc32c.h"
#include "base/float_mode.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/maps/signed_zero.h"
#include "codec/bounded/quads.h"

namespace cgx::bounded {
namespace {

void check_bools(Element element, const std::byte* x, size_t n) {
  if (element != Element::kBool) return;
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<uint8_t>(x[i]) > 1) {
      throw PayloadError(str_of("a bool is ", static_cast<int>(x[i]), ", allowed: 0, 1"));
    }
  }
}

}  // namespace

std::span<const std::byte> OpenBlock::content_of(std::span<const std::byte> of_frame) const {
  const auto found = header.compressed ? of_frame : plain;
  if (found.size() != content) {
    throw PayloadError(
        str_of("the block's frame holds ", found.size(), " bytes, its header says ", content));
  }
  return found;
}

void unpack_symbols(const OpenBlock& block, std::span<const std::byte> content, uint8_t* symbols) {
  const BlockHeader& header = block.header;
  const auto* quads = reinterpret_cast<const uint8_t*>(content.data());
  if (!unpack_quads(quads, block.n, header.center, quads + quad_bytes(block.n), header.listed,
                    symbols)) {
    throw PayloadError("the block's packed symbols do not fit its list of symbols");
  }
}

OpenBlock Decoder::open(std::span<const std::byte> block, size_t n) const {
  OpenBlock open;
  open.n = n;
  if (block.empty()) {
    open.header.map = Map::kConstant;
    return open;
  }
  if (block.size() < 1 + kCrcBytes) throw PayloadError("the block is cut");
  const size_t end = block.size() - kCrcBytes;
  if (crc32c(block.data(), end) != get<uint32_t>(block.data(), end)) {
    throw PayloadError("the checksum differs: bytes were altered");
  }
  const auto body = block.first(end);
  const size_t bytes = bytes_of(maps_->element());
  const auto map = static_cast<Map>(body[0]);
  if (map == Map::kRaw || map == Map::kConstant) {
    const size_t values = map == Map::kRaw ? n : 1;
    if (body.size() != 1 + values * bytes) {
      throw PayloadError(
          str_of("the block has ", body.size() - 1, " bytes for ", values, " values"));
    }
    open.header.map = map;
    open.plain = body.subspan(1);
    return open;
  }
  if (body.size() < BlockHeader::kBytes) throw PayloadError("the block's header is cut");
  open.header = BlockHeader::read(body.data(), *maps_, n);
  const BlockSizes sizes(open.header, maps_->element(), n);
  const size_t coded = open.header.coded;
  if (body.size() != BlockHeader::kBytes + coded + sizes.low) {
    throw PayloadError(str_of("the block has ", body.size(), " bytes, its header says ",
                              BlockHeader::kBytes + coded + sizes.low));
  }
  open.content = sizes.content;
  if (open.header.compressed) {
    open.frame = body.subspan(BlockHeader::kBytes, coded);
  } else {
    if (coded != sizes.content) {
      throw PayloadError(
          str_of("the block's symbols have ", coded, " bytes, its header says ", sizes.content));
    }
    open.plain = body.subspan(BlockHeader::kBytes, coded);
  }
  open.low = body.subspan(BlockHeader::kBytes + coded);
  return open;
}

template <typename Word>
void Decoder::from_words(const OpenBlock& block, const Word* words, const int32_t* nodes, size_t n,
                         std::byte* x) const {
  using Value = ValueOf<Word>;
  const Element element = maps_->element();
  const auto put = [&](size_t i, auto value) {
    std::memcpy(x + i * sizeof value, &value, sizeof value);
  };
  switch (block.header.map) {
    case Map::kOrder:
      from_order(element, words, n, {block.header.shift, block.header.origin}, x);
      break;
    case Map::kGrid: {
      double curve[kChunk];
      if (nodes != nullptr) {
        for (size_t run = 0; run < n; run += kCurveRun) {
          draw_curve(nodes + run / kCurveRun * kCurveNodes, std::min<size_t>(kCurveRun, n - run),
                     curve + run);
        }
      }
      word_loops<Word>().from_grid(words, n, block.header.step, nodes == nullptr ? nullptr : curve,
                                   reinterpret_cast<Value*>(x));
      break;
    }
    case Map::kLattice:
      if constexpr (sizeof(Word) == 4) {
        const Lattice& lattice = maps_->lattice();
        Word least = 0, greatest = 0;
        for (size_t i = 0; i < n; ++i) {
          least = words[i] < least ? words[i] : least;
          greatest = words[i] > greatest ? words[i] : greatest;
        }
        if (least < -lattice.most() || greatest > lattice.most()) {
          throw PayloadError(str_of("words are ", least, " to ", greatest, ", allowed: -",
                                    lattice.most(), " to ", lattice.most()));
        }
        lattice.from_words(words, n, reinterpret_cast<uint16_t*>(x));
      }
      break;
    default: {
      const LogGrid& log_grid = maps_->log_grid();
      const int64_t origin = block.header.origin, most = log_grid.most(origin);
      for (size_t i = 0; i < n; ++i) {
        if (words[i] < -most || words[i] > most) {
          throw PayloadError(str_of("a word is ", words[i], ", which stands for no number"));
        }
        put(i, static_cast<Value>(log_grid.value(words[i], origin)));
      }
    }
  }
}

template <typename Word>
void Decoder::decode_words(const OpenBlock& block, const std::byte* content, std::byte* x) const {
  const BlockHeader& header = block.header;
  const Element element = maps_->element();
  const size_t count = block.n, bytes = bytes_of(element);
  const BlockSizes sizes(header, element, count);
  const auto* symbols = reinterpret_cast<const uint8_t*>(content);
  const uint8_t* const after_symbols = symbols + sizes.symbols;
  std::vector<uint8_t> unpacked;
  if (header.quads) {
    unpacked.resize(4 * quad_bytes(count));
    unpack_symbols(block, {content, sizes.content}, unpacked.data());
    symbols = unpacked.data();
  }
  const auto* low = reinterpret_cast<const uint8_t*>(block.low.data());
  const auto* low_bytes = header.low == LowBits::kCoded ? after_symbols : low;
  const auto* low_bits = low + sizes.low_bytes * count;
  const std::byte* at = content + sizes.symbols + sizes.coded_low;
  std::vector<int32_t> nodes;
  if (sizes.nodes > 0) {
    nodes.resize(sizes.nodes / 4);
    read_nodes(at, count, nodes.data());
    at += sizes.nodes;
  }
  const std::byte* outlier = at;
  const std::byte* const outliers_end = at + sizes.outliers;
  const std::byte* const places = outliers_end;
  const std::byte* const specials = places + header.specials * size_t{2};
  const Low<const uint8_t> lows{header.width, low_bytes, count, low_bits, sizes.bit_stride};
  const auto& loops = word_loops<Word>();
  const Word base = static_cast<Word>(header.base);
  Word words[kChunk];
  Word last = 0, last_step = 0;
  for (size_t first = 0; first < count; first += kChunk) {
    const size_t n = std::min(kChunk, count - first);
    loops.join(symbols + first, n, base, lows.after(first), words);
    if (header.outliers > 0) {
      for (size_t i = 0; i < n; ++i) {
        if (symbols[first + i] != kOutlier) continue;
        if (outlier == outliers_end)
          throw PayloadError("the block has fewer outliers than symbols of them");
        words[i] = get<Word>(outlier);
        outlier += sizeof(Word);
      }
    }
    if (header.predictor == Predictor::kLine) last_step = loops.sum(words, n, last_step);
    if (header.predictor == Predictor::kPrevious || header.predictor == Predictor::kLine) {
      last = loops.sum(words, n, last);
    }
    if (header.signed_zero) {
      with_bits(element, [&]<typename Signed>() {
        using Bits = std::make_unsigned_t<Signed>;
        Bits negative[kChunk];
        take_signed_zeros(words, n, negative);
        from_words(block, words, nullptr, n, x + first * bytes);
        put_signs(negative, n, reinterpret_cast<Bits*>(x + first * bytes));
      });
      continue;
    }
    from_words(block, words, nodes.empty() ? nullptr : &nodes[first / kCurveRun * kCurveNodes], n,
               x + first * bytes);
  }
  if (outlier != outliers_end)
    throw PayloadError("the block has more outliers than symbols of them");
  for (size_t i = 0, least = 0; i < header.specials; ++i) {
    const size_t place = get<uint16_t>(places, 2 * i);
    if (place >= count || place < least) {
      throw PayloadError(str_of("a special value is at ", place, ", allowed: ", least, " to ",
                                count - 1, ", in ascending order"));
    }
    least = place + 1;
    std::memcpy(x + place * bytes, specials + i * bytes, bytes);
  }
}

void Decoder::decode(const OpenBlock& block, std::span<const std::byte> content,
                     std::byte* x) const {
  const FloatMode mode;
  const Element element = maps_->element();
  const size_t bytes = bytes_of(element);
  if (block.header.map == Map::kConstant) {
    if (block.plain.empty()) {
      std::memset(x, 0, block.n * bytes);
      return;
    }
    const uint64_t bits = bits_at(element, block.plain.data(), 0);
    for (size_t i = 0; i < block.n; ++i) put_bits(element, x, i, bits);
  } else if (block.header.map == Map::kRaw) {
    std::memcpy(x, block.plain.data(), block.n * bytes);
  } else {
    content = block.content_of(content);
    with_word(element, [&]<typename Word>() { decode_words<Word>(block, content.data(), x); });
  }
  check_bools(element, x, block.n);
}

}  // namespace cgx::bounded
