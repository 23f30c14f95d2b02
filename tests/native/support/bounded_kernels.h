// Blocks of the error-bounded compressor on its kernels, by loops over their threads: what tests of
// these compare with the CPU.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../../device/host_kernels.h"
#include "bounded_values.h"
#include "codec/bounded/gpu/decode.h"
#include "codec/bounded/gpu/encode.h"
#include "codec/bounded/gpu/look.h"
#include "codec/bounded/gpu/slab.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/quads.h"

namespace cgx::native {

using bounded::Slab;
using MapsOf = std::shared_ptr<const bounded::Maps>;

// Memory that nothing has written to shows what is read before.
inline Block fresh(size_t bytes) { return Block(bytes, std::byte{0x5a}); }
inline unsigned char* address(std::span<const std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
}

inline void run_encode(const bounded::on_gpu::BlocksCall& call, bool wide) {
  using namespace bounded::on_gpu;
  wide ? device::launch_blocks<BlocksCall, EncodeMemory<int64_t>>(call, encode_stage)
       : device::launch_blocks<BlocksCall, EncodeMemory<int32_t>>(call, encode_stage);
}
inline void run_decode(const bounded::on_gpu::BlocksCall& call, bool wide) {
  using namespace bounded::on_gpu;
  wide ? device::launch_blocks<BlocksCall, DecodeMemory<int64_t>>(call, decode_stage)
       : device::launch_blocks<BlocksCall, DecodeMemory<int32_t>>(call, decode_stage);
}

/// The content of a block, and the block without a frame.
struct OnKernel {
  Block content, block;
  bool operator==(const OnKernel&) const = default;
};

/// slab.look_bytes() for each block of the slab, whose values are x.
inline Block look_on_kernels(const Slab& slab, std::span<const std::byte> x) {
  Block looked = fresh(slab.look_bytes() * slab.blocks());
  bounded::on_gpu::LookCall look = slab.look_call();
  look.x = address(x);
  look.out = address(looked);
  device::launch_blocks<bounded::on_gpu::LookCall, bounded::on_gpu::LookMemory>(
      look, bounded::on_gpu::look_stage);
  return looked;
}

/// Values [from, to) of the blocks' values. `faults`: of each block.
inline Block decode_on_kernels(const MapsOf& maps, const std::vector<OnKernel>& blocks,
                               size_t values, size_t from, size_t to,
                               std::vector<uint32_t>* faults) {
  constexpr size_t kValues = bounded::kBlockValues;
  const size_t bytes = size_of(maps->element());
  Slab slab(maps, values);
  bounded::Decoder decoder(maps);
  std::vector<bounded::OpenBlock> opened;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t n = slab.values_of(i), begin = i * kValues;
    opened.push_back(decoder.open(blocks[i].block, n));
    slab.open(i, opened[i], static_cast<int64_t>(begin) - static_cast<int64_t>(from),
              std::clamp(from, begin, begin + n) - begin, std::clamp(to, begin, begin + n) - begin);
  }
  Block parts = fresh(slab.lay_out()), y = fresh((to - from) * bytes);
  for (size_t i = 0; i < blocks.size(); ++i) {
    slab.fill(i, opened[i], blocks[i].content, parts.data());
  }
  const std::vector<std::byte> image = slab.image();
  bounded::on_gpu::BlocksCall call = slab.blocks_call(image.data());
  faults->assign(blocks.size(), 0);
  call.y = address(y);
  call.parts = address(parts);
  call.faults = faults->data();
  run_decode(call, slab.wide());
  return y;
}

/// The values of a block; nothing: it is refused, by all levels of the CPU and by the kernel.
inline std::optional<Block> decoded_everywhere(const MapsOf& maps, const OnKernel& made, size_t n,
                                               const std::string& what) {
  std::optional<Block> wanted;
  bool first = true;
  for (const std::string& level : simd_levels()) {
    const AtSimdLevel at(level);
    std::optional<Block> found;
    try {
      found = decode_block(maps, made.block, made.content, n);
    } catch (const bounded::PayloadError&) {
    }
    CHECK(first || found == wanted, what, ": another outcome at level ", level);
    wanted = found;
    first = false;
  }
  std::vector<uint32_t> faults;
  std::optional<Block> found;
  try {
    found = decode_on_kernels(maps, {made}, n, 0, n, &faults);
    if (faults[0] != 0) found.reset();
  } catch (const bounded::PayloadError&) {
  }
  CHECK(found.has_value() == wanted.has_value(), what, ": a kernel ",
        found ? "takes what the CPU refuses" : "refuses what the CPU takes");
  CHECK(found == wanted, what, ": a kernel makes other values");
  return wanted;
}

/// The fields of a block, as numbers: what a block of this header has in its content and behind it.
struct Fields {
  bounded::BlockHeader header;  // of which sizes and numbers follow from the rest
  std::vector<uint8_t> symbols;
  std::vector<int32_t> nodes;
  Block outliers, places, specials, low;
};

inline OnKernel joined(const Fields& fields) {
  OnKernel made;
  bounded::BlockHeader header = fields.header;
  const auto append = [](Block& to, const Block& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const auto* symbols = reinterpret_cast<const std::byte*>(fields.symbols.data());
  made.content.assign(symbols, symbols + fields.symbols.size());
  if (!fields.nodes.empty()) {
    Block nodes(4 * fields.nodes.size());
    bounded::write_nodes(fields.nodes.data(), fields.symbols.size(), nodes.data());
    append(made.content, nodes);
  }
  for (const Block* list : {&fields.outliers, &fields.places, &fields.specials}) {
    append(made.content, *list);
  }
  header.specials = static_cast<uint32_t>(fields.places.size() / 2);
  header.coded = static_cast<uint32_t>(made.content.size());
  made.block.resize(bounded::BlockHeader::kBytes);
  header.write(made.block.data());
  append(made.block, made.content);
  append(made.block, fields.low);
  made.block.resize(made.block.size() + bounded::kCrcBytes);
  seal(made.block);
  return made;
}

}  // namespace cgx::native
