// `maxmin` by kernels of warps: the members that codec/gpu/families.h asks for.
//
// A warp works on a unit at a time (warp_units.h). A bucket is a power of two: less than a row, a row,
// a unit, or several units, whose values are then read twice. Units are whole: what is left of a run
// is for thread blocks.
#pragma once

#include "codec/families/maxmin/gpu/warp_units.h"
#include "codec/gpu/stages.h"
#include "codec/gpu/warp.h"

namespace cgx::gpu::maxmin {

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
