// The host's side of the kernels for blocks of a tensor: fills in their arguments and takes their
// results. Nothing here touches a device.
//
//   encode: look_call, then choose_form() for each block, lay_out(), blocks_call, then adopt() each block
//   decode: open() for each block, lay_out(), fill() each block, blocks_call
//
// Calls for different blocks may come from different threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/bounded/decode/decoder.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/gpu/call.h"

namespace cgx::bounded {

class Slab {
 public:
  /// `values` values of a tensor, in blocks of which all but the last are full.
  Slab(std::shared_ptr<const Maps> maps, size_t values);
  /// With forms() of another one, laid out. reach: values from the tensor's beginning that the kernels
  /// may touch; whole: they touch all values of each block, as encoding does. ConfigError: forms that no
  /// Slab has, or that leave this reach.
  Slab(std::shared_ptr<const Maps> maps, size_t values, std::span<const std::byte> forms,
       size_t reach, bool whole = false);

  size_t blocks() const { return forms_.size(); }
  size_t values_of(size_t block) const;

  // ---- encode ----

  /// Bytes that the look at a block leaves; and the call, which lacks its addresses.
  size_t look_bytes() const;
  on_gpu::LookCall look_call() const;

  /// Places in the block whose values choose_form() needs, too; its first value is the value `first` of
  /// a tensor of that shape.
  std::vector<uint32_t> field_places(Encoder& encoder, size_t block,
                                     std::span<const uint64_t> shape, uint64_t first);
  /// Chooses how the block is written. looked: look_bytes() that must stay; values: at the places. False:
  /// the block must be encoded by its values.
  bool choose_form(Encoder& encoder, size_t block, const std::byte* looked,
                   const std::byte* values = nullptr);

  /// Gives the encoder what the kernel made. False: the block must be encoded by its values.
  bool adopt(Encoder& encoder, size_t block, const std::byte* parts) const;

  // ---- decode ----

  /// The block has been opened. Values of the block outside of [from, to) are not wanted; value: where
  /// its first one would be in the tensor.
  void open(size_t block, const OpenBlock& opened, int64_t value, size_t from, size_t to);

  /// Writes the parts of an open block. `content`: as Decoder::decode(). PayloadError.
  void fill(size_t block, const OpenBlock& opened, std::span<const std::byte> content,
            std::byte* parts) const;

  // ---- both ----

  /// How the blocks are written, for a Slab elsewhere; valid until this one changes.
  std::span<const std::byte> forms() const { return std::as_bytes(std::span(forms_)); }

  /// Bytes of the parts of all blocks, whose places are now fixed.
  size_t lay_out();
  /// The same, after lay_out().
  size_t bytes() const;
  /// What the device needs in its memory, and the call with addresses into it (at `image`); x, y,
  /// parts and faults are missing.
  std::vector<std::byte> image() const;
  on_gpu::BlocksCall blocks_call(const std::byte* image) const;
  bool wide() const { return size_of(maps_->element()) == 8; }

 private:
  /// What is in the image, and where.
  struct Tables {
    size_t words, values, log_table, curves, end;
  };
  Tables tables() const;
  void check_form(size_t block, size_t reach, bool whole) const;

  const std::shared_ptr<const Maps> maps_;
  const size_t values_;
  std::vector<on_gpu::BlockForm> forms_;
  std::vector<Form> chosen_;               // encode
  std::vector<const std::byte*> samples_;  // encode
  struct Field {
    field::Geometry geometry;
    std::vector<uint32_t> places;
    bool needs_values = false;
  };
  std::vector<Field> fields_;  // encode
};

}  // namespace cgx::bounded
