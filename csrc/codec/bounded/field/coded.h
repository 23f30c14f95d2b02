// A field's block behind its header, which encoder and decoder share:
//
//     kind, width, height, start   a byte, and numbers of bytes.h
//     step                         float64, of kGrid only
//     middle                       a number: what is expected where nothing is known yet
//     weights                      where there is more than one row: of each group but the anchors: a
//                                  bit for each of its weights that is not 0, then these
//     scales                       5 bytes: of each group, 4 bits, how much larger its neighbourhoods
//                                  are than its residuals, less 8, in bins
//     holes                        holes.h
//     escapes                      their number, and the values' bits
//     states, model                a byte; ans/model.h
//     tokens                       the number of their bytes; ans/coder.h
//     bits                         behind the tokens, in their order; to the end of the block
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "codec/bounded/ans/coder.h"
#include "codec/bounded/bits.h"
#include "codec/bounded/element.h"
#include "codec/bounded/field/geometry.h"
#include "codec/bounded/field/holes.h"
#include "codec/bounded/field/rows.h"
#include "codec/bounded/field/walk.h"

namespace cgx::bounded::field {

/// What a field is made of. T: float or double.
template <typename T>
struct Numbers {
  Kind kind;
  Geometry geometry;
  double step = 0, bound = 0;  // kGrid
  T middle = 0;                // a number among the others
  size_t n = 0;
  const T* numbers = nullptr;         // n; of holes and escapes any that is finite
  const std::byte* values = nullptr;  // n, with their own bits
  DType element = DType::kFloat32;
  const Holes* holes = nullptr;
  const uint8_t* escapes = nullptr;  // by value: 1 where it is stored as it is; null: none
};

/// Encodes fields. Not thread-safe; its memory serves one field after the other.
template <typename T>
class FieldEncoder {
 public:
  /// Appends the field. Every number comes back from FieldDecoder as it is, or on a grid within the
  /// bound, or, where that cannot be, it is an escape.
  void encode(const Numbers<T>& from, std::vector<std::byte>& out);

 private:
  void begin(const Numbers<T>& from);
  void spread();
  void take(const Row<T>& row);
  bool take_known(const Row<T>& row, const uint8_t* missing);
  void take_each(const Row<T>& row, const uint8_t* missing);
  void put_rest(ResidualOf<T> residual, int count);
  void write(const Weights (&weights)[kGroups], std::vector<std::byte>& out);
  void write_scales(int (&scales)[kGroups], std::vector<std::byte>& out) const;
  void write_tokens(const int (&scales)[kGroups], std::vector<std::byte>& out);

  const RowLoops<T>& loops_ = row_loops<T>();
  const Numbers<T>* from_ = nullptr;
  Walk<T> walk_;
  size_t plane_ = 0, planes_ = 0, first_ = 0;
  std::vector<T> numbers_, x_;
  std::vector<uint8_t> missing_;
  std::vector<ResidualOf<T>> residuals_;
  std::vector<uint8_t> tokens_, bins_, row_tokens_, lengths_;
  std::vector<uint8_t> gone_;
  bool gaps_ = false;            // in this plane something is missing
  size_t count_ = 0;             // of the tokens
  std::vector<uint32_t> rows_;   // tokens of each
  std::vector<uint8_t> groups_;  // of each row
  BitWriter bits_;
  std::vector<uint32_t> escaped_;
  double residual_sum_[kGroups] = {}, size_sum_[kGroups] = {};
};

/// What FieldDecoder gives.
template <typename T>
struct Decoded {
  Kind kind;
  Geometry geometry;
  double step = 0;
  const T* numbers = nullptr;  // of holes and escapes any; until the next call
  Holes holes;
  std::vector<uint32_t> escapes;       // places, in no order
  std::span<const std::byte> escaped;  // their values, in the order of the places above
};

/// Decodes fields. Not thread-safe; its memory serves one field after the other.
template <typename T>
class FieldDecoder {
 public:
  /// Reads a field of n values; all of `in` is its. PayloadError.
  Decoded<T> decode(std::span<const std::byte> in, DType element, size_t n);

 private:
  struct Head;
  static Head read_head(std::span<const std::byte>& in, size_t n, Decoded<T>& out);
  void spread(size_t n);
  void put(const Row<T>& row);
  bool take_long(const Row<T>& row, size_t first);

  const RowLoops<T>& loops_ = row_loops<T>();
  Walk<T> walk_;
  Decoded<T>* out_ = nullptr;
  ans::Reader* reader_ = nullptr;
  BitReader* bits_ = nullptr;
  size_t plane_ = 0, first_ = 0;
  bool gaps_ = false;  // in this plane something is missing
  ans::TablesOf tables_[kGroups];
  std::vector<uint8_t> missing_, used_, tokens_, gone_;
  std::vector<ResidualOf<T>> residuals_;
  std::vector<T> cells_;
};

}  // namespace cgx::bounded::field
