// Rotated blocks by kernels of warps: the members that codec.cu asks for. Blocks are whole, of 256,
// 512 or 1024 values; what is left of a run is for thread blocks. A family brings
//   kFamily         its number
//   kTogether       blocks that are quantized at once
//   Memory          shared memory of a warp
//   staging(memory, slot)     the part of it for store_codes(), of a block whose codes are known
//   Encoder<Warp>(warp, memory, bits)
//     code(warp, slot, u, packed, product, square)
//                     the codes, the lanes' parts of the sums u c and c c; u, of the coefficients,
//                     becomes c
//   and if kTogether is not 1, where code() gets no u:
//     put(warp, slot, u, measures)      the coefficients of block number `slot` of those at once
//     walk(warp, blocks, n)             all of them are there
//     measures(slot)                    what put() got
//   Decoder<Warp>(warp, memory, bits, factor)
//     load(warp, from, c)               levels times the factor, of a block's codes
#pragma once

#include "codec/gpu/stages.h"
#include "codec/rotation/gpu/warp_codes.h"

namespace cgx::gpu::rotation {

template <typename Quantizer>
struct Warps {
  static constexpr uint8_t kFamily = Quantizer::kFamily;
  using Memory = typename Quantizer::Memory;

  template <typename Warp>
  static CGX_HD void encode(Warp& warp, Memory& memory, const EncodeCall& call, uint64_t item) {
    const Part part = part_of(call.table, item, least_of);
    const CodecRun& run = part.run;
    if (part.n == 0) return;
    unsigned char* message = call.messages[run.message];
    typename Quantizer::template Encoder<Warp> encoder(warp, memory, run.bits);
    with_rows(run, [&](auto rows) {
      constexpr uint32_t kRows = decltype(rows)::kRows;
      const auto load = [&](uint64_t first, OwnRows<Warp, kRows>& x) {
        const unsigned char* from = call.x + (run.value + first) * size_of(call.type);
        warp.each([&](uint32_t lane) { load_rows(call.type, from, lane, x(lane)); });
      };
      const auto keep = [](uint64_t, OwnRows<Warp, kRows>&, float) {};
      encode_part<kRows>(warp, memory, encoder, part, call.key, message, load, keep);
    });
  }

  template <typename Warp>
  static CGX_HD void decode(Warp& warp, Memory& memory, const DecodeCall& call, uint64_t item) {
    const Part part = part_of(call.table, item, least_of);
    const CodecRun& run = part.run;
    if (part.n == 0) return;
    const unsigned char* message = call.messages[run.message];
    with_rows(run, [&](auto rows) {
      constexpr uint32_t kRows = decltype(rows)::kRows;
      typename Quantizer::template Decoder<Warp> decoder(warp, memory, run.bits, factor_of(kRows));
      CGX_LOOP for (uint32_t done = 0; done < part.n; done += kRows * kLanes) {
        const uint64_t first = part.first + done;
        OwnRows<Warp, kRows> x;
        decode_block<kRows>(warp, decoder, run, message, first, x);
        unsigned char* to = call.y + (run.value + first) * size_of(call.type);
        warp.each([&](uint32_t lane) {
          // A block that is not finite is NaN whole, and whatever it is added to becomes NaN.
          if (x(lane)[0] != x(lane)[0]) return fill_with_nan<kRows>(call.type, to, lane);
          if (call.add) {
            const auto* y = reinterpret_cast<const float*>(to) + lane;
            CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
              x(lane)[k] = one_nan(rn_add(y[k * kLanes], x(lane)[k]));
            }
          }
          store_rows(call.type, to, lane, x(lane));
        });
      }
    });
  }

  template <typename Warp>
  static CGX_HD void sum(Warp& warp, Memory& memory, const SumCall& call, uint64_t item) {
    const Part part = part_of(call.table, item, least_of);
    const CodecRun& run = part.run;
    if (part.n == 0) return;
    with_rows(run, [&](auto rows) {
      constexpr uint32_t kRows = decltype(rows)::kRows;
      typename Quantizer::template Decoder<Warp> decoder(warp, memory, run.bits, factor_of(kRows));
      const auto store = [&](uint64_t first, const OwnRows<Warp, kRows>& x) {
        unsigned char* to = call.y + (run.sum + first) * size_of(call.type);
        warp.each([&](uint32_t lane) { store_rows(call.type, to, lane, x(lane)); });
        return to;
      };
      const auto load = [&](uint64_t first, OwnRows<Warp, kRows>& x) {
        sum_block<kRows>(warp, decoder, call, run, first, x);
      };
      if (call.encoded == nullptr) {
        CGX_LOOP for (uint32_t done = 0; done < part.n; done += kRows * kLanes) {
          OwnRows<Warp, kRows> x;
          load(part.first + done, x);
          warp.each([&](uint32_t lane) { make_one_nan(x(lane)); });
          unsigned char* to = store(part.first + done, x);
          warp.each([&](uint32_t lane) { store_nans(call.type, to, lane, x(lane)); });
        }
        return;
      }
      typename Quantizer::template Encoder<Warp> encoder(warp, memory, run.bits);
      const auto keep = [&](uint64_t first, OwnRows<Warp, kRows>& c, float scale) {
        if (call.y == nullptr) return;
        warp.each([&](uint32_t lane) {
          CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
            c(lane)[k] = rn_mul(c(lane)[k], factor_of(kRows));
          }
        });
        to_values<kRows>(warp, c, scale, state_of(call.key, run, first));
        unsigned char* to = store(first, c);
        if (scale == scale) return;
        warp.each([&](uint32_t lane) { fill_with_nan<kRows>(call.type, to, lane); });
      };
      encode_part<kRows>(warp, memory, encoder, part, call.key, call.encoded, load, keep);
    });
  }

 private:
  template <typename Warp, uint32_t kRows>
  using OwnRows = typename Warp::template Own<Rows<kRows>>;

  template <uint32_t rows>
  struct Length {
    static constexpr uint32_t kRows = rows;
  };
  /// Calls work(Length<rows>{}) with the rows of the run's blocks.
  template <typename Work>
  static CGX_HD void with_rows(const CodecRun& run, const Work& work) {
    if (run.bucket == 8 * kLanes) return work(Length<8>{});
    if (run.bucket == 16 * kLanes) return work(Length<16>{});
    work(Length<kMostRows>{});
  }

  static CGX_HD uint32_t least_of(const CodecRun& run) { return static_cast<uint32_t>(run.bucket); }
  static CGX_HD float factor_of(uint32_t rows) { return stage_factor(stages_of(rows * kLanes)); }
  /// Of the signs of an encoding, at a value of the run.
  static CGX_HD uint64_t state_of(RandomKey key, const CodecRun& run, uint64_t first) {
    return sign_state(static_cast<uint64_t>(key.high) << 32 | key.low, run.index + first);
  }

  /// Encodes blocks. load(first, x): the values of the block that starts at value `first` of the
  /// run; keep(first, c, scale): what it has become.
  template <uint32_t kRows, typename Warp, typename Encoder, typename Load, typename Keep>
  static CGX_HD void encode_part(Warp& warp, Memory& memory, Encoder& encoder, const Part& part,
                                 RandomKey key, unsigned char* message, const Load& load,
                                 const Keep& keep) {
    constexpr uint32_t kBlock = kRows * kLanes;
    const auto begin = [&](uint64_t first, OwnRows<Warp, kRows>& u) {
      load(first, u);
      return to_coefficients<kRows>(warp, u, state_of(key, part.run, first));
    };
    const auto end = [&](uint64_t first, uint32_t slot, const Measures& measures,
                         OwnRows<Warp, kRows>& u) {
      const float scale =
          encode_block<kRows>(warp, memory, encoder, part.run, first, slot, measures, message, u);
      keep(first, u, scale);
    };
    CGX_LOOP for (uint32_t done = 0; done < part.n; done += Quantizer::kTogether * kBlock) {
      const uint64_t first = part.first + done;
      if constexpr (Quantizer::kTogether == 1) {
        OwnRows<Warp, kRows> u;
        const Measures measures = begin(first, u);
        end(first, 0, measures, u);
      } else {
        const uint32_t left = (part.n - done) / kBlock;
        const uint32_t blocks = left < Quantizer::kTogether ? left : Quantizer::kTogether;
        CGX_LOOP for (uint32_t slot = 0; slot < blocks; ++slot) {
          OwnRows<Warp, kRows> u;
          const Measures measures = begin(first + slot * kBlock, u);
          encoder.template put<kRows>(warp, slot, u, measures);
        }
        encoder.walk(warp, blocks, kBlock);
        CGX_LOOP for (uint32_t slot = 0; slot < blocks; ++slot) {
          OwnRows<Warp, kRows> u;
          end(first + slot * kBlock, slot, encoder.measures(slot), u);
        }
      }
      if (first != 0) continue;
      warp.each([&](uint32_t lane) {
        if (lane >= 2) return;
        const uint64_t state = state_of(key, part.run, 0);
        reinterpret_cast<uint32_t*>(message + part.run.meta - kKeyBytes)[lane] =
            static_cast<uint32_t>(lane == 0 ? state : state >> 32);
      });
    }
  }

  template <uint32_t kRows, typename Warp, typename Encoder>
  static CGX_HD float encode_block(Warp& warp, Memory& memory, Encoder& encoder,
                                   const CodecRun& run, uint64_t first, uint32_t slot,
                                   const Measures& measures, unsigned char* message,
                                   OwnRows<Warp, kRows>& u) {
    typename Warp::template Own<Packed<kRows>> packed;
    typename Warp::template Own<float> product, square;
    encoder.template code<kRows>(warp, slot, u, packed, product, square);
    const float scale =
        block_scale<kRows>(warp, measures, static_cast<Scale>(run.own[0]), product, square);
    if (measures.norm.inverse == 0.0f) {
      warp.each([&](uint32_t lane) { packed(lane) = {}; });
    }
    store_codes<kRows>(warp, Quantizer::staging(memory, slot), packed, run.bits,
                       message + run.codes + first / 8 * run.bits);
    warp.each([&](uint32_t lane) {
      if (lane != 0) return;
      reinterpret_cast<float*>(message + run.meta)[first / (kRows * kLanes)] = scale;
    });
    return scale;
  }

  template <uint32_t kRows, typename Warp, typename Decoder>
  static CGX_HD void decode_block(Warp& warp, Decoder& decoder, const CodecRun& run,
                                  const unsigned char* message, uint64_t first,
                                  OwnRows<Warp, kRows>& x) {
    const auto* key = reinterpret_cast<const uint32_t*>(message + run.meta - kKeyBytes);
    const uint64_t start = key[0] | static_cast<uint64_t>(key[1]) << 32;
    const float scale =
        reinterpret_cast<const float*>(message + run.meta)[first / (kRows * kLanes)];
    decoder.template load<kRows>(warp, message + run.codes + first / 8 * run.bits, x);
    to_values<kRows>(warp, x, scale, sign_state(start, first));
  }

  /// The sum of a block, divided, of all ranks in their order.
  template <uint32_t kRows, typename Warp, typename Decoder>
  static CGX_HD void sum_block(Warp& warp, Decoder& decoder, const SumCall& call,
                               const CodecRun& run, uint64_t first, OwnRows<Warp, kRows>& sum) {
    warp.each([&](uint32_t lane) {  // adding to -0 changes nothing, not even 0
      CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) sum(lane)[k] = -0.0f;
    });
    CGX_LOOP for (uint32_t r = 0; r < call.ranks; ++r) {
      OwnRows<Warp, kRows> x;
      if (call.payloads[r] == nullptr) {
        const unsigned char* from = call.x + (run.value + first) * size_of(call.own);
        warp.each([&](uint32_t lane) { load_rows(call.own, from, lane, x(lane)); });
      } else {
        decode_block<kRows>(warp, decoder, run, call.payloads[r], first, x);
      }
      warp.each([&](uint32_t lane) {
        CGX_UNROLL for (uint32_t k = 0; k < kRows; ++k) {
          sum(lane)[k] = rn_add(sum(lane)[k], x(lane)[k]);
        }
      });
    }
    warp.each([&](uint32_t lane) { divide<4>(sum(lane), call.divisor); });
  }
};

}  // namespace cgx::gpu::rotation
