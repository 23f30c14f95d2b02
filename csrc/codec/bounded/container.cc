#include "codec/bounded/container.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/crc32c.h"
#include "codec/bounded/block.h"
#include "codec/bounded/bytes.h"

namespace cgx::bounded {
namespace {

constexpr char kMagic[4] = {'C', 'G', 'X', 'B'};
constexpr uint8_t kComplex = 64;
constexpr size_t kCrcAt = 8, kCheckedFrom = 12;

// Covers the header and the table, without the checksum itself, and the last bytes of each block.
class Checksum {
 public:
  explicit Checksum(std::span<const std::byte> head)
      : covered_(head.begin(), head.begin() + kCrcAt) {
    covered_.insert(covered_.end(), head.begin() + kCheckedFrom, head.end());
  }
  void add_end_of(std::span<const std::byte> block) {
    const auto end = block.last(std::min(block.size(), kCrcBytes));
    covered_.insert(covered_.end(), end.begin(), end.end());
  }
  uint32_t value() const { return crc32c(covered_.data(), covered_.size()); }

 private:
  std::vector<std::byte> covered_;
};

// The bound that was asked for is for people: nothing is computed with it.
void check_asked(const Container& header) {
  const bool number = std::isfinite(header.asked) && !std::signbit(header.asked);
  const bool same = header.kind == BoundKind::kLossless || header.kind == BoundKind::kRelative ||
                    header.asked == header.bound;
  if (!number) {
    throw PayloadError(str_of("the payload's requested bound is ", header.asked,
                              ", allowed: finite numbers >= 0"));
  }
  if (!same) {
    throw PayloadError(str_of("the payload's bound is ", header.bound, ", but ", header.asked,
                              " was requested: these differ for `relative` only"));
  }
}

}  // namespace

uint64_t Container::values() const {
  uint64_t count = complex ? 2 : 1;
  for (const uint64_t dim : shape) count *= dim;
  return count;
}

uint64_t Container::blocks() const {
  const uint64_t count = values();
  return count / kBlockValues + (count % kBlockValues != 0 ? 1 : 0);
}

size_t Container::values_of(uint64_t block) const {
  const uint64_t left = values() - block * kBlockValues;
  return left < kBlockValues ? static_cast<size_t>(left) : kBlockValues;
}

std::vector<std::byte> Container::write(std::span<const std::span<const std::byte>> blocks) const {
  std::vector<std::byte> out;
  for (const char c : kMagic) append(out, c);
  append(out, static_cast<uint8_t>(version));
  append(out, static_cast<uint8_t>(number_of(element) + (complex ? kComplex : 0)));
  append(out, static_cast<uint8_t>(kind));
  append(out, static_cast<uint8_t>(shape.size()));
  append(out, uint32_t{0});
  append(out, uint32_t{kBlockBits});
  append(out, asked);
  append(out, bound);
  for (const uint64_t dim : shape) append(out, dim);
  for (const auto& block : blocks) append(out, static_cast<uint32_t>(block.size()));
  Checksum checksum(out);
  for (const auto& block : blocks) checksum.add_end_of(block);
  const uint32_t crc = checksum.value();
  std::memcpy(out.data() + kCrcAt, &crc, sizeof crc);
  return out;
}

OpenContainer OpenContainer::read(std::span<const std::byte> payload) {
  const std::byte* in = payload.data();
  if (payload.size() >= 4 && std::memcmp(in, kMagic, 4) != 0) {
    throw PayloadError("the payload does not begin with CGXB: it is none of torch_cgx.bounded");
  }
  if (payload.size() < Container::kFixedBytes) {
    throw PayloadError(str_of("the payload is cut: it has ", payload.size(),
                              " bytes, its header alone has ", Container::kFixedBytes));
  }
  const int version = get<uint8_t>(in + 4);
  if (version < kFirstVersion || version > kLastVersion) {
    throw PayloadError(str_of("the payload has version ", version,
                              " of the format, this reader knows ", kFirstVersion, " to ",
                              kLastVersion, ": install a newer torch_cgx"));
  }
  OpenContainer open;
  Container& header = open.header;
  header.version = version;
  const int type = get<uint8_t>(in + 5), kind = get<uint8_t>(in + 6);
  const size_t dims = get<uint8_t>(in + 7);
  const int element = type % kComplex;
  header.complex = type >= kComplex;
  if (type >= 2 * kComplex || element < 1 || element > kLastElement ||
      (header.complex && (element > 3))) {
    throw PayloadError(str_of("the payload's type is ", type, ", which the format does not know"));
  }
  header.element = element_of(element);
  if (kind > kLastBoundKind)
    throw PayloadError(str_of("the payload's kind of bound is ", kind, ", allowed: 0 to 3"));
  header.kind = static_cast<BoundKind>(kind);
  if (dims > Container::kMostDims)
    throw PayloadError(str_of("the payload has ", dims, " dimensions, allowed: 0 to 64"));
  if (get<uint32_t>(in + 12) != kBlockBits) {
    throw PayloadError(
        str_of("the payload's blocks have 2^", get<uint32_t>(in + 12), " values, allowed: 2^16"));
  }
  header.asked = get<double>(in + 16);
  header.bound = get<double>(in + 24);
  check_asked(header);
  const size_t table = Container::kFixedBytes + 8 * dims;
  if (payload.size() < table) throw PayloadError("the payload is cut: its shape is not complete");
  // A tensor's size in bytes fits 63 bits, and so do its strides, even if it is empty.
  int64_t values = header.complex ? 2 : 1;
  bool fits = true, empty = false;
  for (size_t i = 0; i < dims; ++i) {
    const uint64_t dim = get<uint64_t>(in + Container::kFixedBytes + 8 * i);
    header.shape.push_back(dim);
    empty = empty || dim == 0;
    fits = fits && !__builtin_mul_overflow(values, std::max<uint64_t>(dim, 1), &values);
  }
  if (!fits || (!empty && values > INT64_MAX / 16))
    throw PayloadError("the payload's shape has more values than a tensor can have");
  const uint64_t blocks = header.blocks();
  if (blocks > (payload.size() - table) / 4) {
    throw PayloadError(str_of("the payload is cut: it has ", payload.size(),
                              " bytes, and its shape needs a table of ", blocks, " blocks"));
  }
  const size_t first = table + 4 * static_cast<size_t>(blocks);
  open.starts.reserve(static_cast<size_t>(blocks) + 1);
  uint64_t at = first;
  for (uint64_t block = 0; block < blocks; ++block) {
    open.starts.push_back(at);
    at += get<uint32_t>(in + table + 4 * block);
  }
  open.starts.push_back(at);
  if (at != payload.size()) {
    throw PayloadError(str_of("the payload ",
                              at > payload.size() ? "is cut" : "goes on after its end", ": it has ",
                              payload.size(), " bytes, its table says ", at));
  }
  Checksum checksum(payload.first(first));
  for (size_t block = 0; block < blocks; ++block) {
    checksum.add_end_of(
        payload.subspan(open.starts[block], open.starts[block + 1] - open.starts[block]));
  }
  if (get<uint32_t>(in + kCrcAt) != checksum.value()) {
    throw PayloadError(
        "the checksum of the payload's header differs: bytes were altered, or blocks exchanged");
  }
  return open;
}

}  // namespace cgx::bounded
