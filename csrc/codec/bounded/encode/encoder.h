// Encodes blocks in two steps: encode() fills content(), the input of the entropy coder; finish() takes
// the coder's frame and writes the block. Not thread-safe: one encoder a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "codec/bounded/ans/windowed.h"
#include "codec/bounded/block.h"
#include "codec/bounded/bytes_map.h"
#include "codec/bounded/encode/find_own.h"
#include "codec/bounded/field/geometry.h"
#include "codec/bounded/field/promise.h"
#include "codec/bounded/loops/loops.h"
#include "codec/bounded/maps/grid.h"

namespace cgx::bounded {

namespace field {
template <typename T>
class FieldEncoder;
}  // namespace field

/// Facts about a block's values, by which its map is chosen.
struct Looked {
  const std::byte* values = nullptr;  // all; null: they are on a device, and this is known of them:
  const std::byte* sample =
      nullptr;  // the runs that start_of_run() names, or all of kSampled or less
  const std::byte* tried = nullptr;  // with a grid, the runs that start_of_tried() names
  Seen seen{};
  uint64_t least =
      0;  // bits of the least magnitude that is normal; at least an infinity's: none is
};

/// How a block is written. header.map is kConstant where all values have equal bits.
struct Form {
  BlockHeader header;
  SymbolForm symbol_form;
  double inverse = 0;         // 1 / header.step
  bool needs_values = false;  // the block is encoded from its values
};

/// Output of the kernels for a block, by its form. Planes of bytes and of bits are `stride` and
/// `stride` / 8 bytes apart; `nodes` are the format's second differences before they are split into
/// planes. Lists may be longer than the header says.
struct Made {
  const std::byte *symbols, *low_bytes, *low_bits, *nodes, *outliers, *places, *specials;
  size_t stride;
};

class Encoder {
 public:
  explicit Encoder(std::shared_ptr<const Maps> maps);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  const Maps& maps() const { return *maps_; }

  /// Where the values of the next block lie; a width of 0: it is no field.
  void place(const field::Geometry& geometry) { geometry_ = geometry; }

  /// x: n values, 1 to kBlockValues, aligned as their type is; they must stay until finish() returns.
  /// Every decoded value keeps the bound: a value that the block's map cannot represent within it is
  /// stored with its own bits.
  void encode(const std::byte* x, size_t n);

  /// The same in two steps for blocks that a device encodes: choose_form() goes by `looked`, and adopt() takes
  /// the device's output. The form's header then has the numbers of outliers and special values.
  /// A block for which sample_failed() is true must be encoded from its values.
  Form choose_form(const Looked& looked, size_t n);
  void adopt(const Form& form, const Made& made, size_t n);
  static bool sample_failed(const BlockHeader& header, size_t n) {
    return header.outliers + header.specials > most_listed(n);
  }
  /// The most outliers and special values that a block may have if its sample represents it.
  static uint32_t most_listed(size_t n) { return static_cast<uint32_t>(n / 16); }
  /// Places of the values in a block of n, placed with place(), by which needs_values() says whether the
  /// block may be a field, which is encoded from its values. values: at these places, one after the
  /// other. Before choose_form().
  std::vector<uint32_t> field_places(size_t n);
  bool needs_values(const Looked& looked, size_t n, std::span<const uint32_t> places,
                    const std::byte* values);
  /// The same for a block of n equal values.
  void adopt_constant(const std::byte* value, size_t n);
  /// True if with a frame of that many bytes the block is stored as its n values, which finish() reads
  /// then.
  bool is_raw(size_t frame_bytes) const;

  /// The input of the entropy coder; empty for a block without symbols.
  std::span<const std::byte> content() const { return {content_.data(), content_.size()}; }
  /// Estimated entropy of a symbol in bits, order ignored; 8 for noise.
  double entropy() const { return symbol_form_.entropy; }
  /// Symbols are packed, four to a byte.
  bool packed() const { return header_.quads; }

  /// What content() would take if its symbols were coded by those before them, in bytes, to 1 % or so;
  /// 0: this does not promise less than a coder that takes each symbol for itself.
  size_t windowed() const { return windowed_; }
  /// Does so. The block then has no frame: finish() gets an empty one. Only where windowed() is not 0.
  void use_windows();

  /// The values may be there again, so a frame of their bytes may be shorter than the block.
  bool again() const { return again_; }
  /// Bytes of the block with a frame of that many.
  size_t bytes_with(size_t frame_bytes) const;
  size_t value_bytes() const { return n_ * size_of(maps_->element()); }
  /// Whether the values repeat what stands far before them, perhaps by more than a few thousand values.
  bool again_far() const;
  /// Rearranges the bytes of the first n values of encode(), or of all. Valid until the next call.
  std::span<const std::byte> rearranged(Rearranged way, size_t n = SIZE_MAX);
  /// The block as a frame of these.
  std::span<const std::byte> finish_bytes(Rearranged way, std::span<const std::byte> frame);

  /// The block, at most most_bytes(), until the next call. An empty frame: content() could not be
  /// made shorter.
  std::span<const std::byte> finish(std::span<const std::byte> frame);
  static size_t most_bytes(DType element, size_t n) { return 1 + n * size_of(element) + kCrcBytes; }

 private:
  void begin(const Looked& looked, size_t n);
  void use(const SymbolForm& form);
  template <typename Word>
  void choose_words();
  template <typename Word>
  void encode_words();
  uint64_t common_fill() const;
  bool may_be_field() const;
  /// value(i): where value i is.
  field::Promise promise(const std::function<const std::byte*(size_t)>& value) const;
  template <typename T>
  field::FieldEncoder<T>& fields();
  template <typename T>
  void float_field();
  template <typename Word>
  void words_field();
  template <typename Word, typename T>
  void word_field(const std::vector<Word>& words, const std::vector<uint8_t>& escapes);
  template <typename Word>
  bool look_at_field();
  bool is_field(size_t frame_bytes) const;
  bool look_at_most(uint64_t value);
  std::span<const std::byte> close(std::span<const std::byte> head, std::span<const std::byte> body,
                                   std::span<const std::byte> low);
  template <typename Word>
  bool all_alike();
  void complete();
  void look_at_windows();
  void set_constant();
  std::span<const std::byte> coded_of(std::span<const std::byte> frame) const;
  /// Values [first, first + n) of the block, n <= kSlice; x: the first of them.
  struct Slice {
    const std::byte* x;
    size_t first, n;
    bool record;  // special values are appended to the lists
  };
  /// Words of these values. Special values get the word before. Their number.
  template <typename Word>
  size_t map_words(const Slice& slice, Word* words);
  template <typename Word>
  size_t map_slice(const Slice& slice, Word* words);
  template <typename Word>
  size_t on_grid(const Slice& slice, Word* words);
  template <typename Word>
  size_t on_log_grid(const Slice& slice, Word* words);
  template <typename Word>
  void choose_own();
  template <typename Word>
  void round_values();
  template <typename Word>
  size_t to_palette(const Slice& slice, Word* words);
  template <typename Word>
  size_t to_multiples(const Slice& slice, Word* words);
  template <typename Word, typename WordOf>
  size_t one_by_one(const Slice& slice, Word* words, WordOf&& word_of);
  /// look(x, n) of each run of the sample.
  void look_at_sample(const std::function<void(const std::byte*, size_t)>& look) const;
  Seen look_at_all() const;
  bool many_signed_zeros() const;
  template <typename Word>
  Sample sample_words(bool all, size_t* specials);
  Seen look() const;
  double unit_of(const Seen& seen) const;
  void use_order();
  template <typename Word>
  void choose_map(const Seen& seen);
  template <typename Word>
  double least_subnormal() const;
  template <typename Word>
  int64_t least_exponent() const;
  template <typename Word>
  void choose_curve();
  template <typename Word>
  void fit_curves();
  bool words_are_residuals() const;
  template <typename Word>
  void write_words();
  void use_quads();

  const std::shared_ptr<const Maps> maps_;
  Looked looked_;
  const std::byte* x_ = nullptr;  // the values, or one of them if they are equal
  size_t n_ = 0;
  BlockHeader header_;
  SymbolForm symbol_form_;
  Grid grid_;
  int64_t before_ = 0;  // the last word
  std::vector<int32_t> nodes_;
  std::vector<uint8_t> listed_;
  std::vector<std::byte> outliers_, places_, specials_;
  PaletteIndex palette_;
  Multiples multiples_;
  std::vector<std::byte> own_;  // the block's own map; of kMostly, what follows the map
  bool again_ = false;
  bool few_words_ = false, needs_values_ = false;
  std::vector<std::byte> rounded_;  // the values that words stand for
  const std::byte* again_values_ = nullptr;
  std::vector<std::byte> rearranged_;
  std::vector<std::byte> content_, low_, block_;
  ans::Windowed windows_;
  uint8_t center_ = 0;             // of the windows
  size_t windowed_ = 0;            // bytes
  alignas(8) std::byte alike_[8];  // the value of a block whose words are the same
  size_t rest_at_ = 0;             // in content_: what follows the symbols
  field::Geometry geometry_;
  std::unique_ptr<field::FieldEncoder<float>> narrow_fields_;
  std::unique_ptr<field::FieldEncoder<double>> wide_fields_;
  std::vector<std::byte> field_;  // the block as a field, behind the map; empty: it is none
};

}  // namespace cgx::bounded
