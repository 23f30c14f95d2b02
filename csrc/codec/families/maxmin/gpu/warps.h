// `maxmin` by kernels of warps: the members that codec/gpu/families.h asks for.
//
// A warp works on a unit at a time: two rows of 256 values, of which each lane has a group of eight
// neighbours. A bucket is a power of two: a part of a row, a row, a unit, or several units, whose
// values are then read twice. Units are whole: what is left of a run is for thread blocks.
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

/// `from`: memory of the unit's first value.
template <Type type>
CGX_HD Groups load_unit(const unsigned char* from, uint32_t lane) {
  constexpr uint32_t kBytes = type == Type::kFloat32 ? 4 : 2;
  Groups groups{};
  if (aligned(from)) {
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      groups[r] = load_group<type>(from + Unit::place(r, lane) * kBytes);
    }
  } else {
    // A loop, through which rows move: as instructions side by side with the vectors, each of which
    // is skipped in one of the two cases, they would cost both cases the time of both.
    CGX_LOOP for (uint32_t r = 0; r < kRows; ++r) {
      groups[0] = groups[1];
      groups[1] = load_each<type>(from + Unit::place(r, lane) * kBytes);
    }
  }
  return groups;
}
template <Type type>
CGX_HD void store_unit(unsigned char* to, uint32_t lane, const Groups& groups) {
  constexpr uint32_t kBytes = type == Type::kFloat32 ? 4 : 2;
  if (aligned(to)) {
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      store_group<type>(to + Unit::place(r, lane) * kBytes, groups[r]);
    }
  } else {
    Groups moving = groups;
    CGX_LOOP for (uint32_t r = 0; r < kRows; ++r) {
      store_each<type>(to + Unit::place(r, lane) * kBytes, moving[0]);
      moving[0] = moving[1];
    }
  }
}

/// Of a type that is known at run time.
CGX_HD Groups load_unit(Type type, const unsigned char* from, uint32_t lane) {
  if (type == Type::kFloat32) return load_unit<Type::kFloat32>(from, lane);
  if (type == Type::kFloat16) return load_unit<Type::kFloat16>(from, lane);
  return load_unit<Type::kBFloat16>(from, lane);
}
CGX_HD void store_unit(Type type, unsigned char* to, uint32_t lane, const Groups& groups) {
  if (type == Type::kFloat32) return store_unit<Type::kFloat32>(to, lane, groups);
  if (type == Type::kFloat16) return store_unit<Type::kFloat16>(to, lane, groups);
  store_unit<Type::kBFloat16>(to, lane, groups);
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

/// What a message holds of a lane's groups.
template <typename W>
CGX_HD void fetch_unit(const W& width, const CodecRun& run, const Unit& unit,
                       const unsigned char* message, uint32_t lane, Metas& meta,
                       CodesOfRows& codes) {
  const unsigned char* bytes = message + unit.codes_at(run);
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
    meta[r] = load_meta(message + run.meta, unit.bucket(Unit::place(r, lane)));
    codes[r] = load_codes(width, bytes, r * kLanes + lane);
  }
}

template <typename W>
CGX_HD Groups decoded(const W& width, const Metas& meta, const CodesOfRows& codes) {
  Groups groups;
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) groups[r] = values_of(width, codes[r], meta[r]);
  return groups;
}
/// sum += values, or = values where it has none yet.
CGX_HD void add_to(Groups& sum, bool has, const Groups& values) {
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
    CGX_UNROLL for (uint32_t k = 0; k < kGroup; ++k) {
      sum[r][k] = has ? rn_add(sum[r][k], values[r][k]) : values[r][k];
    }
  }
}

CGX_HD void store_nans(Type type, unsigned char* to, uint32_t lane, const Groups& groups) {
  if (type == Type::kFloat32) return;
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
    unsigned char* row = to + Unit::place(r, lane) * size_of(type);
    if (type == Type::kFloat16) {
      gpu::store_nans<Type::kFloat16>(row, 1, groups[r]);
    } else {
      gpu::store_nans<Type::kBFloat16>(row, 1, groups[r]);
    }
  }
}
CGX_HD void make_one_nan(Groups& groups) {
  CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) gpu::make_one_nan(groups[r]);
}

/// Encodes units. kOne: each is a bucket; else buckets are of any length.
template <typename W, bool kOne>
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

  /// Encodes the buckets that start in a unit. load(unit, lane): the lane's groups; keep(unit, lane,
  /// meta, codes): what became of them.
  template <typename Warp, typename Load, typename Keep>
  static CGX_HD void encode(const W& width, Warp& warp, const CodecRun& run, const Unit& unit,
                            RandomKey key, unsigned char* message, const Load& load,
                            const Keep& keep) {
    typename Warp::template Own<Groups> groups;
    typename Warp::template Own<Bounds> low, high;
    typename Warp::template Own<Array<Coding, kBuckets>> coding;
    const uint32_t n = units(unit.shift);
    CGX_LOOP for (uint32_t u = 0; u < n; ++u) {
      warp.each([&](uint32_t lane) {
        groups(lane) = load(Unit{unit.first + u * kUnitOfWarp, unit.shift}, lane);
        see(groups(lane), u == 0, low(lane), high(lane));
      });
    }
    join(warp, unit.shift, low, high);
    warp.each([&](uint32_t lane) {
      CGX_UNROLL for (uint32_t b = 0; b < kBuckets; ++b) {
        coding(lane)[b] = coding_of(width, low(lane)[b], high(lane)[b]);
      }
    });
    const bool stochastic = is_stochastic(run);
    CGX_LOOP for (uint32_t u = n; u-- > 0;) {
      const Unit here{unit.first + u * kUnitOfWarp, unit.shift};
      warp.each([&](uint32_t lane) {
        if (u + 1 < n) groups(lane) = load(here, lane);
        Metas meta;
        CodesOfRows codes;
        unsigned char* to = message + here.codes_at(run) + lane * width.bits();
        CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
          const Coding& of_row = coding(lane)[kOne ? 0 : r];
          Group& group = groups(lane)[r];
          if (of_row.ordinary && !stochastic) {
            quantize(group, of_row);
          } else {
            quantize_any(group, of_row, width.levels(), stochastic, key,
                         run.index + here.first + Unit::place(r, lane));
          }
          meta[r] = of_row.meta;
          codes[r] = join_codes(width, group);
          store_codes(width, to + r * kLanes * width.bits(), codes[r]);
        }
        keep(here, lane, meta, codes);
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
    const auto load = [&](const Unit& unit, uint32_t lane) {
      return load_unit<type>(call.x + (run.value + unit.first) * size_of(type), lane);
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
      with_width(run.bits, [&](auto width) { walk(Encoder<decltype(width), true>{}, width); });
    } else if (run.bits == 4) {
      walk(Encoder<Width<4>, false>{}, Width<4>{});
    } else {
      walk(Encoder<AnyWidth, false>{}, AnyWidth{run.bits});
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
        warp.each([&](uint32_t lane) {
          Metas meta;
          CodesOfRows codes;
          fetch_unit(width, run, unit, message, lane, meta, codes);
          Groups sum;
          if constexpr (decltype(add)::kYes) sum = load_unit<type>(to, lane);
          add_to(sum, decltype(add)::kYes, decoded(width, meta, codes));
          if constexpr (decltype(add)::kYes) make_one_nan(sum);
          store_unit<type>(to, lane, sum);
          if constexpr (type != Type::kFloat32) {
            CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) {  // all of a group, or none
              if (meta[r].unit == meta[r].unit) continue;
              gpu::store_nans<type>(to + Unit::place(r, lane) * size_of(type), 1, sum[r]);
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
    const auto load = [&](const Unit& unit, uint32_t lane) {
      return sum_unit(width, call, run, unit, lane);
    };
    const auto keep = [&](const Unit& unit, uint32_t lane, const Metas& meta,
                          const CodesOfRows& codes) {
      if (call.y != nullptr) store(unit, lane, decoded(width, meta, codes));
    };
    CGX_LOOP for (uint32_t done = 0; done < part.n; done += step) {
      const Unit unit{part.first + done, run.own[1]};
      if (call.encoded != nullptr) {
        Encoder<AnyWidth, false>::encode(width, warp, run, unit, call.key, call.encoded, load,
                                         keep);
        continue;
      }
      CGX_LOOP for (uint32_t u = 0; u < step; u += kUnitOfWarp) {
        const Unit here{unit.first + u, unit.shift};
        warp.each([&](uint32_t lane) {
          Groups groups = load(here, lane);
          make_one_nan(groups);
          store(here, lane, groups);
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
  static CGX_HD Groups sum_unit(const AnyWidth& width, const SumCall& call, const CodecRun& run,
                                const Unit& unit, uint32_t lane) {
    Groups sum{}, own{};
    if (call.x != nullptr) {
      own = load_unit(call.own, call.x + (run.value + unit.first) * size_of(call.own), lane);
    }
    CGX_LOOP for (uint32_t first = 0; first < call.ranks; first += kAtOnce) {
      const unsigned char* payloads[kAtOnce];
      Metas meta[kAtOnce]{};
      CodesOfRows codes[kAtOnce]{};
      CGX_UNROLL for (uint32_t k = 0; k < kAtOnce; ++k) {
        payloads[k] = first + k < call.ranks ? call.payloads[first + k] : nullptr;
        if (payloads[k] != nullptr) {
          fetch_unit(width, run, unit, payloads[k], lane, meta[k], codes[k]);
        }
      }
      CGX_UNROLL for (uint32_t k = 0; k < kAtOnce; ++k) {
        if (payloads[k] != nullptr) {
          add_to(sum, first + k > 0, decoded(width, meta[k], codes[k]));
        } else if (first + k < call.ranks) {
          add_to(sum, first + k > 0, own);
        }
      }
    }
    CGX_UNROLL for (uint32_t r = 0; r < kRows; ++r) divide(sum[r], call.divisor);
    return sum;
  }
};

}  // namespace cgx::gpu::maxmin
