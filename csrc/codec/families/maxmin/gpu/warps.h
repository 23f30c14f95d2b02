// `maxmin` by kernels of warps: the members that codec/gpu/families.h asks for.
//
// A warp works on a unit at a time: two rows of 256 values, of which each lane has a group of eight.
// A bucket is a power of two: a part of a row, a row, a unit, or several units, whose values are then
// read twice. Units are whole: what is left of a run is for thread blocks.
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

/// Encodes units. kOne: each is a bucket; else buckets are of any length.
template <typename W, bool kOne, typename Places>
struct Encoder {
  static constexpr uint32_t kBuckets = kOne ? 1 : kRows;
  /// Of the lane's values: by row, or of all.
  using Bounds = Array<float, kBuckets>;

  static CGX_HD uint32_t units(uint32_t shift) {
    return kOne || shift <= kLogOfUnit ? 1 : 1u << (shift - kLogOfUnit);
  }

  static CGX_HD void see(const Groups& groups, bool first, Bounds& low, Bounds& high) {
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      const Group& group = groups[r];
      const uint32_t b = kOne ? 0 : r;
      const bool begins = first && (!kOne || r == 0);
      low[b] = begins ? group[0] : nan_min(low[b], group[0]);
      high[b] = begins ? group[0] : nan_max(high[b], group[0]);
      CGX_UNROLL for (uint32_t k = 1; k < kGroup; ++k) {
        low[b] = nan_min(low[b], group[k]);
        high[b] = nan_max(high[b], group[k]);
      }
    }
  }

  /// Before, low and high are the extremes of a lane's own values; after, those of its whole buckets.
  template <typename Warp>
  static CGX_HD void join(Warp& warp, uint32_t shift, typename Warp::template Own<Bounds>& low,
                          typename Warp::template Own<Bounds>& high) {
    if (!kOne && shift >= kLogOfUnit) {
      warp.each([&](uint32_t lane) {
        low(lane)[0] = low(lane)[kRows - 1] = nan_min(low(lane)[0], low(lane)[kRows - 1]);
        high(lane)[0] = high(lane)[kRows - 1] = nan_max(high(lane)[0], high(lane)[kRows - 1]);
      });
    }
    CGX_UNROLL for (uint32_t step = 1; step < kLanes; step *= 2) {
      if (!kOne && step * kGroup >= 1u << shift) break;
      const auto other_low = warp.exchange(low, step), other_high = warp.exchange(high, step);
      warp.each([&](uint32_t lane) {
        CGX_UNROLL for (uint32_t b = 0; b < kBuckets; ++b) {
          low(lane)[b] = nan_min(low(lane)[b], other_low(lane)[b]);
          high(lane)[b] = nan_max(high(lane)[b], other_high(lane)[b]);
        }
      });
    }
  }

  /// Encodes the buckets that start in a unit. load(unit, groups): the lanes' groups; keep(unit, lane,
  /// meta, codes): what became of a lane's.
  template <typename Warp, typename Load, typename Keep>
  static CGX_HD void encode(const W& width, Warp& warp, const CodecRun& run, const Unit& unit,
                            RandomKey key, unsigned char* message, const Load& load,
                            const Keep& keep) {
    typename Warp::template Own<Groups> groups;
    typename Warp::template Own<Bounds> low, high;
    typename Warp::template Own<Array<Coding, kBuckets>> coding;
    const uint32_t n = units(unit.shift);
    const bool stochastic = is_stochastic(run);
    CGX_LOOP for (uint32_t u = 0; u < n; ++u) {
      load(Unit{unit.first + u * kUnitOfWarp, unit.shift}, groups);
      warp.each([&](uint32_t lane) { see(groups(lane), u == 0, low(lane), high(lane)); });
    }
    join(warp, unit.shift, low, high);
    warp.each([&](uint32_t lane) {
      CGX_UNROLL for (uint32_t b = 0; b < kBuckets; ++b) {
        coding(lane)[b] = coding_of(width, low(lane)[b], high(lane)[b], stochastic);
      }
    });
    CGX_LOOP for (uint32_t u = n; u-- > 0;) {
      const Unit here{unit.first + u * kUnitOfWarp, unit.shift};
      if (u + 1 < n) load(here, groups);
      typename Warp::template Own<CodesOfRows> codes;
      warp.each([&](uint32_t lane) {
        Metas meta;
        CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
          meta[r] = coding(lane)[kOne ? 0 : r].meta;
        }
        if (stochastic) {
          const RandomRange random(key, run.index + here.first, kUnitOfWarp);
          CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
            codes(lane)[r] =
                random_codes<Places::kFifth>(width, groups(lane)[r], coding(lane)[kOne ? 0 : r],
                                             random, r * kRow + Places::place(lane));
          }
        } else {
          CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
            codes(lane)[r] = nearest_codes(width, groups(lane)[r], coding(lane)[kOne ? 0 : r]);
          }
        }
        keep(here, lane, meta, codes(lane));
      });
      if constexpr (Places::kHalves) exchange_halves(width, warp, codes);
      warp.each([&](uint32_t lane) {
        unsigned char* to = message + here.codes_at(run) + Places::codes(lane) * width.bits();
        CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
          store_codes(width, to + r * kLanes * width.bits(), codes(lane)[r]);
        }
      });
    }
    warp.each([&](uint32_t lane) {
      unsigned char* to = message + run.meta;
      if constexpr (kOne) {
        if (lane == 0) store_meta(to, unit.bucket(0), coding(lane)[0].meta);
      } else {
        CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
          const uint32_t i = Unit::place(r, lane);
          const bool begins = (i & ((1u << unit.shift) - 1)) == 0;
          if (begins) store_meta(to, unit.bucket(i), coding(lane)[r].meta);
        }
      }
    });
  }
};

/// Calls work(width) with Width<bits>.
template <typename Work>
CGX_HD void with_width(uint32_t bits, const Work& work) {
  switch (bits) {
    case 1:
      return work(Width<1>{});
    case 2:
      return work(Width<2>{});
    case 3:
      return work(Width<3>{});
    case 4:
      return work(Width<4>{});
    case 5:
      return work(Width<5>{});
    case 6:
      return work(Width<6>{});
    case 7:
      return work(Width<7>{});
    default:
      return work(Width<8>{});
  }
}

struct Warps {
  static constexpr uint8_t kFamily = kMaxMinFamily;
  struct Memory {};

  template <Type type, typename Warp>
  static CGX_HD void encode(Warp& warp, Memory&, const EncodeCall& call, uint64_t item) {
    const Part part = part_of(call.table, item, least_of);
    const CodecRun& run = part.run;
    unsigned char* message = call.messages[run.message];
    const auto load = [&](const Unit& unit, typename Warp::template Own<Groups>& groups) {
      const unsigned char* from = call.x + (run.value + unit.first) * size_of(type);
      warp.each(
          [&](uint32_t lane) { groups(lane) = load_unit<type>(LayoutOf<type>{}, from, lane); });
    };
    const auto keep = [](const Unit&, uint32_t, const Metas&, const CodesOfRows&) {};
    const uint32_t shift = run.own[1], step = least_of(run);
    const auto walk = [&](auto encoder, auto width) {
      CGX_LOOP for (uint32_t done = 0; done < part.n; done += step) {
        encoder.encode(width, warp, run, Unit{part.first + done, shift}, call.key, message, load,
                       keep);
      }
    };
    if (shift == kLogOfUnit) {
      with_width(run.bits, [&](auto width) {
        walk(Encoder<decltype(width), true, LayoutOf<type>>{}, width);
      });
    } else if (run.bits == 4) {
      walk(Encoder<Width<4>, false, LayoutOf<type>>{}, Width<4>{});
    } else {
      walk(Encoder<AnyWidth, false, LayoutOf<type>>{}, AnyWidth{run.bits});
    }
  }

  template <Type type, typename Warp>
  static CGX_HD void decode(Warp& warp, Memory&, const DecodeCall& call, uint64_t item) {
    const Part part = part_of(call.table, item, [](const CodecRun&) { return kUnitOfWarp; });
    const CodecRun& run = part.run;
    const unsigned char* message = call.messages[run.message];
    const auto walk = [&](auto width, auto add) {
      CGX_LOOP for (uint32_t done = 0; done < part.n; done += kUnitOfWarp) {
        const Unit unit{part.first + done, run.own[1]};
        unsigned char* to = call.y + (run.value + unit.first) * size_of(type);
        typename Warp::template Own<Metas> meta;
        typename Warp::template Own<CodesOfRows> codes;
        fetch_unit(LayoutOf<type>{}, width, warp, run, unit, message, meta, codes);
        if constexpr (LayoutOf<type>::kHalves) exchange_halves(width, warp, codes);
        warp.each([&](uint32_t lane) {
          Groups values = decoded(width, meta(lane), codes(lane));
          if constexpr (decltype(add)::kYes) {
            Groups sum = load_unit<type>(LayoutOf<type>{}, to, lane);
            add_to(sum, values);
            make_one_nan(sum);
            values = sum;
          }
          store_unit<type>(LayoutOf<type>{}, to, lane, values);
          if constexpr (type != Type::kFloat32) {
            CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {  // all of a group, or none
              if (meta(lane)[r].unit == meta(lane)[r].unit) continue;
              gpu::store_nans<type>(to + Unit::place(r, lane) * size_of(type), 1, values[r]);
            }
          }
        });
      }
    };
    with_width(run.bits, [&](auto width) {
      if constexpr (type == Type::kFloat32) {
        if (call.add) return walk(width, Flag<true>{});
      }
      walk(width, Flag<false>{});
    });
  }

  template <typename Warp>
  static CGX_HD void sum(Warp& warp, Memory&, const SumCall& call, uint64_t item) {
    const Part part = part_of(call.table, item, least_of);
    const CodecRun& run = part.run;
    const uint32_t step = least_of(run);
    const auto store = [&](const Unit& unit, uint32_t lane, const Groups& groups) {
      unsigned char* to = call.y + (run.sum + unit.first) * size_of(call.type);
      store_unit(call.type, to, lane, groups);
      store_nans(call.type, to, lane, groups);
    };
    const AnyWidth width{run.bits};
    const auto load = [&](const Unit& unit, typename Warp::template Own<Groups>& groups) {
      sum_unit(width, warp, call, run, unit, groups);
    };
    const auto keep = [&](const Unit& unit, uint32_t lane, const Metas& meta,
                          const CodesOfRows& codes) {
      if (call.y != nullptr) store(unit, lane, decoded(width, meta, codes));
    };
    CGX_LOOP for (uint32_t done = 0; done < part.n; done += step) {
      const Unit unit{part.first + done, run.own[1]};
      if (call.encoded != nullptr) {
        Encoder<AnyWidth, false, LayoutOfSum>::encode(width, warp, run, unit, call.key,
                                                      call.encoded, load, keep);
        continue;
      }
      CGX_LOOP for (uint32_t u = 0; u < step; u += kUnitOfWarp) {
        const Unit here{unit.first + u, unit.shift};
        typename Warp::template Own<Groups> groups;
        load(here, groups);
        warp.each([&](uint32_t lane) {
          make_one_nan(groups(lane));
          store(here, lane, groups(lane));
        });
      }
    }
  }

 private:
  template <bool yes>
  struct Flag {
    static constexpr bool kYes = yes;
  };

  /// Values of whole buckets and units.
  static CGX_HD uint32_t least_of(const CodecRun& run) {
    return run.own[1] < kLogOfUnit ? kUnitOfWarp : 1u << run.own[1];
  }

  /// The sum of a unit, divided, of all ranks in their order. Messages of kAtOnce ranks are on their
  /// way at once, and this rank's own values before them.
  static constexpr uint32_t kAtOnce = 4;
  template <typename Warp>
  static CGX_HD void sum_unit(const AnyWidth& width, Warp& warp, const SumCall& call,
                              const CodecRun& run, const Unit& unit,
                              typename Warp::template Own<Groups>& sum) {
    typename Warp::template Own<Groups> own;
    warp.each([&](uint32_t lane) {
      CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {  // adding to -0 changes nothing, not even 0
        CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) sum(lane)[r][k] = -0.0f;
      }
      own(lane) = {};
      if (call.x == nullptr) return;
      own(lane) = load_unit(call.own, call.x + (run.value + unit.first) * size_of(call.own), lane);
    });
    CGX_LOOP for (uint32_t first = 0; first < call.ranks; first += kAtOnce) {
      const unsigned char* payloads[kAtOnce];
      typename Warp::template Own<Metas> meta[kAtOnce]{};
      typename Warp::template Own<CodesOfRows> codes[kAtOnce]{};
      CGX_UNROLL for (uint32_t k = 0; k < kAtOnce; ++k) {
        payloads[k] = first + k < call.ranks ? call.payloads[first + k] : nullptr;
        if (payloads[k] != nullptr) {
          fetch_unit(LayoutOfSum{}, width, warp, run, unit, payloads[k], meta[k], codes[k]);
        }
      }
      CGX_UNROLL for (uint32_t k = 0; k < kAtOnce; ++k) {
        if (payloads[k] != nullptr) {
          exchange_halves(width, warp, codes[k]);
          warp.each([&](uint32_t lane) {
            add_to(sum(lane), decoded(width, meta[k](lane), codes[k](lane)));
          });
        } else if (first + k < call.ranks) {
          warp.each([&](uint32_t lane) { add_to(sum(lane), own(lane)); });
        }
      }
    }
    warp.each([&](uint32_t lane) {
      CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) divide(sum(lane)[r], call.divisor);
    });
  }
};

}  // namespace cgx::gpu::maxmin
