// Units of `maxmin`: the values that a warp works on at a time, their codes and their meta.
//
// A unit is two rows of 256 values, of which each lane has a group of eight.
//
// Which eight values depends on the type, so that the lanes of each access to memory touch whole
// sectors of 32 bytes:
//   neighbours   types of 16 bits: value 8 l and those behind it are lane l's
//   halves       float32, of which eight neighbours would be two accesses, each of them with a gap of
//                16 bytes behind every 16. Eight lanes have 64 values; lane l of them has those from
//                4 l and from 32 + 4 l on, so that an access of the eight is 128 bytes. In a message
//                eight neighbours are a word, or two: two lanes exchange the codes of four values.
// A bucket has 64 values at least, so all of a group are in one.
#pragma once

#include "codec/families/maxmin/gpu/rows.h"
#include "codec/families/maxmin/maxmin.h"
#include "codec/gpu/stages.h"
#include "codec/gpu/warp.h"

namespace cgx::gpu::maxmin {

constexpr uint32_t kRow = kGroup * kLanes;
constexpr uint32_t kRows = 2;

using Groups = Array<Group, kRows>;
using Metas = Array<MaxMinMeta, kRows>;
using CodesOfRows = Array<Codes, kRows>;

struct Unit {
  uint64_t first;  // value of the run, a multiple of kUnitOfWarp
  uint32_t shift;  // log2 of the values in a bucket

  /// Value of the unit that a lane's group of a row starts with, and its bucket.
  static CGX_HD uint32_t place(uint32_t row, uint32_t lane) { return row * kRow + lane * kGroup; }
  CGX_HD uint64_t bucket(uint32_t place) const { return (first >> shift) + (place >> shift); }
  CGX_HD uint64_t codes_at(const CodecRun& run) const {
    return run.codes + first / kGroup * run.bits;
  }
};
static_assert(kUnitOfWarp == kRows * kRow && kRows == 2);

/// Where a lane's values are in a row.
template <bool halves>
struct Layout {
  static constexpr bool kHalves = halves;
  /// From the first of a lane's values to the fifth.
  static constexpr uint32_t kFifth = halves ? 32 : 4;
  static CGX_HD uint32_t place(uint32_t lane) {
    return halves ? lane / 8 * (8 * kGroup) + lane % 8 * (kGroup / 2) : lane * kGroup;
  }
  /// The eight neighbours of the row whose codes a lane reads and writes.
  static CGX_HD uint32_t codes(uint32_t lane) {
    return halves ? lane / 8 * 8 + lane % 2 * 4 + lane % 8 / 2 : lane;
  }
};
/// Of a kernel for one type. The sum, whose types are known at run time, has halves of all types.
template <Type type>
using LayoutOf = Layout<type == Type::kFloat32>;
using LayoutOfSum = Layout<true>;

/// `from`: memory of the unit's first value.
template <Type type, bool halves>
CGX_HD Groups load_unit(Layout<halves> layout, const unsigned char* from, uint32_t lane) {
  constexpr uint32_t kBytes = type == Type::kFloat32 ? 4 : 2;
  const unsigned char* own = from + layout.place(lane) * kBytes;
  Groups groups{};
  if (aligned(from)) {
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      const unsigned char* row = own + r * kRow * kBytes;
      if constexpr (halves) {
        load_half<type>(row, groups[r], 0);
        load_half<type>(row + layout.kFifth * kBytes, groups[r], kGroup / 2);
      } else {
        groups[r] = load_group<type>(row);
      }
    }
  } else {
    // A loop, through which rows move: as instructions side by side with the vectors, each of which
    // is skipped in one of the two cases, they would cost both cases the time of both.
    CGX_LOOP for (uint32_t r = 0; r < kRows; ++r) {
      groups[0] = groups[1];
      CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
        groups[1][k] = load_value<type>(own, r * kRow + k / 4 * layout.kFifth + k % 4);
      }
    }
  }
  return groups;
}
template <Type type, bool halves>
CGX_HD void store_unit(Layout<halves> layout, unsigned char* to, uint32_t lane,
                       const Groups& groups) {
  constexpr uint32_t kBytes = type == Type::kFloat32 ? 4 : 2;
  unsigned char* own = to + layout.place(lane) * kBytes;
  if (aligned(to)) {
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      unsigned char* row = own + r * kRow * kBytes;
      if constexpr (halves) {
        store_half<type>(row, groups[r], 0);
        store_half<type>(row + layout.kFifth * kBytes, groups[r], kGroup / 2);
      } else {
        store_group<type>(row, groups[r]);
      }
    }
  } else {
    Groups moving = groups;
    CGX_LOOP for (uint32_t r = 0; r < kRows; ++r) {
      CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
        store_value<type>(own, r * kRow + k / 4 * layout.kFifth + k % 4, moving[0][k]);
      }
      moving[0] = moving[1];
    }
  }
}

/// Of a type that is known at run time.
CGX_HD Groups load_unit(Type type, const unsigned char* from, uint32_t lane) {
  const LayoutOfSum layout;
  if (type == Type::kFloat32) return load_unit<Type::kFloat32>(layout, from, lane);
  if (type == Type::kFloat16) return load_unit<Type::kFloat16>(layout, from, lane);
  return load_unit<Type::kBFloat16>(layout, from, lane);
}
CGX_HD void store_unit(Type type, unsigned char* to, uint32_t lane, const Groups& groups) {
  const LayoutOfSum layout;
  if (type == Type::kFloat32) return store_unit<Type::kFloat32>(layout, to, lane, groups);
  if (type == Type::kFloat16) return store_unit<Type::kFloat16>(layout, to, lane, groups);
  store_unit<Type::kBFloat16>(layout, to, lane, groups);
}

/// Codes of a lane's own values to those of eight neighbours, and back: a lane of an even number gives
/// the last four to the next one, and gets its first four.
template <typename W, typename Warp>
CGX_HD void exchange_halves(const W& width, Warp& warp,
                            typename Warp::template Own<CodesOfRows>& codes) {
  typename Warp::template Own<Array<uint32_t, kRows>> given;
  warp.each([&](uint32_t lane) {
    const bool odd = lane % 2 == 1;
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      const Codes own = codes(lane)[r];
      given(lane)[r] = whole_in_word(width) ? with_half_of(own.low, own.high, false)
                       : odd                ? own.low
                                            : own.high;
    }
  });
  const auto got = warp.exchange(given, 1);
  warp.each([&](uint32_t lane) {
    const bool odd = lane % 2 == 1;
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      Codes& own = codes(lane)[r];
      if (whole_in_word(width)) {
        own.low = with_half_of(given(lane)[r], got(lane)[r], odd);
        own.high = own.low >> 16;
      } else {
        own = {odd ? got(lane)[r] : own.low, odd ? own.high : got(lane)[r]};
      }
    }
  });
}

/// In one access: a struct of two floats would be read and written in two.
CGX_HD MaxMinMeta load_meta(const unsigned char* metas, uint64_t bucket) {
  const uint64_t both = reinterpret_cast<const uint64_t*>(metas)[bucket];
  return {from_bits(static_cast<uint32_t>(both)), from_bits(static_cast<uint32_t>(both >> 32))};
}
CGX_HD void store_meta(unsigned char* metas, uint64_t bucket, MaxMinMeta meta) {
  reinterpret_cast<uint64_t*>(metas)[bucket] =
      as_bits(meta.unit) | static_cast<uint64_t>(as_bits(meta.min)) << 32;
}

/// What a message holds of the lanes' groups; of halves, before exchange_halves().
template <bool halves, typename W, typename Warp>
CGX_HD void fetch_unit(Layout<halves> layout, const W& width, Warp& warp, const CodecRun& run,
                       const Unit& unit, const unsigned char* message,
                       typename Warp::template Own<Metas>& meta,
                       typename Warp::template Own<CodesOfRows>& codes) {
  const unsigned char* bytes = message + unit.codes_at(run);
  warp.each([&](uint32_t lane) {
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      meta(lane)[r] = load_meta(message + run.meta, unit.bucket(Unit::place(r, lane)));
      codes(lane)[r] = load_codes(width, bytes, r * kLanes + layout.codes(lane));
    }
  });
}

template <typename W>
CGX_HD Groups decoded(const W& width, const Metas& meta, const CodesOfRows& codes) {
  Groups groups;
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) groups[r] = values_of(width, codes[r], meta[r]);
  return groups;
}
CGX_HD void add_to(Groups& sum, const Groups& values) {
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) sum[r][k] = rn_add(sum[r][k], values[r][k]);
  }
}

/// Of 16-bit values that store_unit() has stored; of a sum, whose lanes have halves of groups.
template <Type type>
CGX_HD void store_nans_of_sum(unsigned char* to, uint32_t lane, const Groups& groups) {
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
    CGX_UNROLL for (uint32_t half = 0; half < 2; ++half) {
      Array<float, kGroup / 2> values;
      CGX_UNROLL for (uint32_t k = 0; k < kGroup / 2; ++k) {
        values[k] = groups[r][half * (kGroup / 2) + k];
      }
      const uint32_t place = r * kRow + LayoutOfSum::place(lane) + half * LayoutOfSum::kFifth;
      gpu::store_nans<type>(to + place * size_of(type), 1, values);
    }
  }
}
CGX_HD void store_nans(Type type, unsigned char* to, uint32_t lane, const Groups& groups) {
  if (type == Type::kFloat16) store_nans_of_sum<Type::kFloat16>(to, lane, groups);
  if (type == Type::kBFloat16) store_nans_of_sum<Type::kBFloat16>(to, lane, groups);
}
CGX_HD void make_one_nan(Groups& groups) {
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) gpu::make_one_nan(groups[r]);
}

}  // namespace cgx::gpu::maxmin
