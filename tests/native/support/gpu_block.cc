#include "gpu_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../../device/host_kernels.h"
#include "check.h"
#include "codec/ops/convert.h"
#include "gpu_launches.h"

namespace cgx::native {
namespace {

using device::launch;

// How many warps share a tile, as a power of two; and nothing of warps: all by thread blocks.
constexpr uint32_t kSplits[] = {0, 2, 1};
constexpr uint32_t kByBlocks = 3;

// memcpy() and memcmp() that take null for no bytes.
void copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
bool equal(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

// Memory at an address that is a multiple of 16, as on the device, plus `shift`.
struct Memory {
  explicit Memory(size_t n, size_t shift = 0) : bytes(n + 32), shift(shift) {}
  unsigned char* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes.data());
    return reinterpret_cast<unsigned char*>((at + 15) / 16 * 16 + shift);
  }
  std::vector<unsigned char> bytes;
  size_t shift;
};

void encode(const device::View& view, gpu::EncodeCall call, uint32_t split) {
  if (split != kByBlocks) return encode_all(view.tables(), call, split);
  call.table = view.all();
  launch(call, call.table.long_buckets, gpu::long_encode_stage);
  launch(call, call.table.tiles, gpu::encode_stage);
}
void decode(const device::View& view, gpu::DecodeCall call, uint32_t split) {
  if (split != kByBlocks) return decode_all(view.tables(), call, split);
  call.table = view.all();
  launch(call, call.table.tiles, gpu::decode_stage);
}
void sum_on_gpu(const device::View& view, gpu::SumCall call, uint32_t split) {
  if (split != kByBlocks) return sum_all(view.tables(), call, split);
  call.table = view.all();
  if (call.encoded != nullptr) launch(call, call.table.long_buckets, gpu::long_sum_stage);
  launch(call, call.table.tiles, gpu::sum_stage);
}

// All ways, or where nothing is for warps the one of thread blocks.
template <typename Work>
void each_way(const gpu::RunTable& table, const Work& work) {
  const device::View view(table);
  work(view, kByBlocks);
  if (view.tables().warps.empty()) return;
  for (const uint32_t split : kSplits) work(view, split);
}

std::vector<std::byte> encode_on_gpu(const BlockCase& c, const device::View& view, uint32_t split,
                                     size_t shift) {
  Memory x(c.x.size(), shift), message(c.bytes());
  copy(x.data(), c.x.data(), c.x.size());
  encode(view, {{}, x.data(), kKey, c.type(), {message.data()}, {}}, split);
  const auto* at = reinterpret_cast<const std::byte*>(message.data());
  return {at, at + c.bytes()};
}

}  // namespace

std::vector<uint32_t> nans_of(DType dtype) {
  if (dtype == DType::kFloat32) return {0x7fc00000, 0xffc00000, 0x7fffffff, 0x7f800001, 0xffa00002};
  if (dtype == DType::kFloat16) return {0x7e00, 0xfe00, 0x7fff, 0x7c01, 0xfd02};
  return {0x7fc0, 0xffc0, 0x7fff, 0x7f81, 0xffa2};
}

bool has_one_nan(const void* values, DType dtype, size_t n) {
  const auto* at = static_cast<const std::byte*>(values);
  std::vector<std::byte> value(size_of(dtype));
  for (size_t i = 0; i < n; ++i, at += size_of(dtype)) {
    float x = 0;
    to_float(at, dtype, 1, &x);
    from_float(&x, dtype, 1, value.data());
    if (std::isnan(x) && std::memcmp(at, value.data(), value.size()) != 0) return false;
  }
  return true;
}

std::vector<std::byte> encode_on_cpu(const BlockCase& c, const std::vector<std::byte>& x) {
  std::vector<std::byte> payload(c.bytes());
  c.codec->encode(x.data(), c.dtype, c.dtype, c.n, 0, c.n, kKey, kIndex, payload.data());
  return payload;
}

void check_encode(const BlockCase& c) {
  const auto expected = encode_on_cpu(c, c.x);
  each_way(c.table(), [&](const device::View& view, uint32_t split) {
    for (size_t shift : {0, 4}) {
      CHECK(encode_on_gpu(c, view, split, shift) == expected, name_of(c), ", shift ", shift,
            ", split ", split);
    }
  });
}

void check_decode(const BlockCase& c) {
  const auto payload = encode_on_cpu(c, c.x);
  Memory message(payload.size());
  copy(message.data(), payload.data(), payload.size());
  std::vector<std::byte> narrow(c.x.size());
  for (const bool add : {false, true}) {
    std::vector<float> expected(c.n, 0.5f), start(expected);
    for (size_t i = 1; add && i < c.n; i += 997) {
      expected[i] = __builtin_nanf("");
      const std::vector<uint32_t> kinds = nans_of(DType::kFloat32);
      std::memcpy(&start[i], &kinds[i % kinds.size()], 4);
    }
    c.codec->decode(payload.data(), c.dtype, c.n, 0, c.n, expected.data(), add);
    if (!add) from_float(expected.data(), c.dtype, c.n, narrow.data());
    each_way(c.table(), [&](const device::View& view, uint32_t split) {
      Memory y(4 * c.n, add ? 4 : 0);
      copy(y.data(), start.data(), 4 * c.n);
      decode(view, {{}, y.data(), gpu::Type::kFloat32, add, {message.data()}}, split);
      CHECK(equal(y.data(), expected.data(), 4 * c.n), name_of(c), ", add ", add, ", split ",
            split);
      CHECK(has_one_nan(y.data(), DType::kFloat32, c.n), name_of(c), ", add ", add);
    });
  }
  each_way(c.table(), [&](const device::View& view, uint32_t split) {
    for (size_t shift : {0, 4}) {
      Memory y(c.x.size(), shift);
      decode(view, {{}, y.data(), c.type(), 0, {message.data()}}, split);
      CHECK(equal(y.data(), narrow.data(), narrow.size()), name_of(c), ", in its type, split ",
            split);
      CHECK(has_one_nan(y.data(), c.dtype, c.n), name_of(c), ", in its type");
    }
  });
}

// Three payloads and this rank's own values, third in order.
void check_sum(const BlockCase& c) {
  const uint32_t own = 2, ranks = 4;
  std::vector<std::vector<std::byte>> inputs(ranks, c.x), payloads(ranks);
  std::vector<float> sum(c.n), part(c.n);
  for (uint32_t r = 0; r < ranks; ++r) {
    if (r < c.n) {
      const auto turn = static_cast<ptrdiff_t>(r * size_of(c.dtype));
      std::rotate(inputs[r].begin(), inputs[r].begin() + turn, inputs[r].end());
    }
    payloads[r] = encode_on_cpu(c, inputs[r]);
    if (r == own) {
      to_float(inputs[r].data(), c.dtype, c.n, part.data());
    } else {
      c.codec->decode(payloads[r].data(), c.dtype, c.n, 0, c.n, part.data(), false);
    }
    for (size_t i = 0; i < c.n; ++i) sum[i] = r == 0 ? part[i] : sum[i] + part[i];
  }
  divide(sum.data(), c.n, 4.0f);
  std::vector<std::byte> encoded(c.bytes()), result(c.x.size());
  c.codec->encode(sum.data(), DType::kFloat32, c.dtype, c.n, 0, c.n, kKey, kIndex, encoded.data());
  c.codec->decode(encoded.data(), c.dtype, c.n, 0, c.n, part.data(), false);
  from_float(part.data(), c.dtype, c.n, result.data());

  std::vector<Memory> messages;
  for (uint32_t r = 0; r < ranks; ++r) messages.emplace_back(c.bytes());
  for (uint32_t r = 0; r < ranks; ++r) {
    copy(messages[r].data(), payloads[r].data(), c.bytes());
  }
  std::vector<float> plain(sum);
  std::vector<std::byte> unrounded(c.x.size());
  from_float(plain.data(), c.dtype, c.n, unrounded.data());
  each_way(c.table(), [&](const device::View& view, uint32_t split) {
    for (const bool encodes : {true, false}) {
      Memory x(c.x.size()), y(c.x.size()), out(c.bytes());
      copy(x.data(), inputs[own].data(), c.x.size());
      gpu::SumCall call{{},       x.data(), encodes ? out.data() : nullptr,
                        y.data(), kKey,     4.0f,
                        ranks,    c.type(), c.type(),
                        {},       {}};
      for (uint32_t r = 0; r < ranks; ++r) {
        call.payloads[r] = r == own ? nullptr : messages[r].data();
      }
      sum_on_gpu(view, call, split);
      const std::vector<std::byte>& wanted = encodes ? result : unrounded;
      if (encodes) {
        CHECK(equal(out.data(), encoded.data(), c.bytes()), name_of(c),
              ", payload of the sum, split ", split);
      }
      CHECK(equal(y.data(), wanted.data(), c.x.size()), name_of(c), ", sum, split ", split);
      CHECK(has_one_nan(y.data(), c.dtype, c.n), name_of(c), ", sum, split ", split);
    }
  });
}

void check_feedback(const BlockCase& c, const FeedbackWay& way) {
  const std::string what =
      str_of(name_of(c), ", shift ", way.shift, ", plus ", way.plus, ", divisor ", way.divisor);
  const gpu::RunTable table = c.table();
  const device::View view(table);
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    const auto gpu_type = static_cast<gpu::Type>(type);
    std::vector<float> owed(c.n), own(c.n), sent(c.n), sum(c.n), got(c.n);
    for (size_t i = 0; i < c.n; ++i) owed[i] = static_cast<float>(i % 17) * 0.0625f;
    std::vector<std::byte> start(c.n * size_of(type));
    from_float(owed.data(), type, c.n, start.data());
    const auto after = [&](const std::vector<float>& wanted, const std::vector<float>& received,
                           float divisor, bool add) {
      std::vector<std::byte> residual = start;
      for (size_t i = 0; i < c.n; ++i) {
        float error = (wanted[i] - received[i]) * divisor;
        if (add) error += owed[i];
        std::byte word[4];
        float kept = 0;
        from_float(&error, type, 1, word);
        to_float(word, type, 1, &kept);
        if (std::isfinite(kept)) std::memcpy(&residual[i * size_of(type)], word, size_of(type));
      }
      return residual;
    };
    to_float(c.x.data(), c.dtype, c.n, own.data());
    for (size_t i = 0; way.plus && i < c.n; ++i) own[i] += owed[i];
    std::vector<std::byte> payload(c.bytes());
    c.codec->encode(own.data(), DType::kFloat32, c.dtype, c.n, 0, c.n, kKey, kIndex,
                    payload.data());
    c.codec->decode(payload.data(), c.dtype, c.n, 0, c.n, sent.data(), false);

    Memory x(c.x.size(), way.shift), message(c.bytes()), residual(start.size(), way.shift);
    copy(x.data(), c.x.data(), c.x.size());
    copy(residual.data(), start.data(), start.size());
    // The table counts from kIndex.
    auto* base = reinterpret_cast<unsigned char*>(reinterpret_cast<uintptr_t>(residual.data()) -
                                                  kIndex * size_of(type));
    gpu::EncodeCall encode{view.all(), x.data(), kKey, c.type(), {message.data()}, {}};
    const auto plus = static_cast<uint8_t>(way.plus);
    encode.feedback = {base, gpu_type, gpu::Type::kFloat32, plus, gpu::Feedback::Keep::kSet};
    launch(encode, encode.table.long_buckets, gpu::long_encode_feedback_stage);
    launch(encode, encode.table.tiles, gpu::encode_feedback_stage);
    CHECK(equal(message.data(), payload.data(), c.bytes()), what, ", payload");
    CHECK(equal(residual.data(), after(own, sent, 1, false).data(), start.size()), what,
          ", residual ", cgx::name_of(type));

    // The payload and the own values once more, averaged; rounded to the tensor's type.
    for (size_t i = 0; i < c.n; ++i) sum[i] = sent[i] + own[i];
    if (way.divisor != 1) divide(sum.data(), c.n, way.divisor);
    c.codec->encode(sum.data(), DType::kFloat32, c.dtype, c.n, 0, c.n, kKey, kIndex,
                    payload.data());
    c.codec->decode(payload.data(), c.dtype, c.n, 0, c.n, got.data(), false);
    std::vector<std::byte> result(c.x.size());
    from_float(got.data(), c.dtype, c.n, result.data());
    to_float(result.data(), c.dtype, c.n, got.data());
    for (const bool add : {false, true}) {
      Memory y(c.x.size(), way.shift), out(c.bytes());
      copy(residual.data(), start.data(), start.size());
      gpu::SumCall call{view.all(), x.data(), out.data(), y.data(), kKey, way.divisor,
                        2,          c.type(), c.type(),   {},       {}};
      call.payloads[way.own_first ? 1 : 0] = message.data();
      const auto keep = add ? gpu::Feedback::Keep::kAdd : gpu::Feedback::Keep::kSet;
      call.feedback = {base, gpu_type, c.type(), plus, keep};
      launch(call, call.table.long_buckets, gpu::long_sum_feedback_stage);
      launch(call, call.table.tiles, gpu::sum_feedback_stage);
      CHECK(equal(out.data(), payload.data(), c.bytes()), what, ", payload of the sum");
      CHECK(equal(y.data(), result.data(), c.x.size()), what, ", sum");
      CHECK(has_one_nan(y.data(), c.dtype, c.n), what, ", sum");
      CHECK(equal(residual.data(), after(sum, got, way.divisor, add).data(), start.size()), what,
            ", residual of the sum");
    }
  }
}

bool finite_on_block(const BlockCase& c) {
  const auto payload = encode_on_cpu(c, c.x);
  Memory message(payload.size());
  copy(message.data(), payload.data(), payload.size());
  const gpu::RunTable table = c.table();
  const device::View view(table);
  uint32_t met = 0;
  gpu::FiniteCall call{view.all(), nullptr, &met, c.type(), {message.data()}};
  launch(call, view.all().tiles, gpu::finite_stage);
  return met == 0;
}

bool values_finite_on_block(const BlockCase& c) {
  Memory x(c.x.size());
  copy(x.data(), c.x.data(), c.x.size());
  gpu::RunTable table;
  table.add(*raw_codec(), c.dtype, 0, 0, c.n, 0, 0, 0);
  const device::View view(table);
  uint32_t met = 0;
  gpu::FiniteCall call{view.all(), x.data(), &met, c.type(), {}};
  launch(call, view.all().tiles, gpu::finite_stage);
  return met == 0;
}

}  // namespace cgx::native
