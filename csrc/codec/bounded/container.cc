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
constexpr uint8_t kComplex = 64, kFramed = 128;
constexpr size_t kCrcAt = 8, kCheckedFrom = 12;
// Before version 3.
constexpr size_t kFixedBytes = 32;
// A payload stands for at most 2^17 times its bytes.
constexpr int kMostPacked = 17;

// Covers the header and the table, without the checksum itself, and the last bytes of each block.
class Checksum {
 public:
  explicit Checksum(std::span<const std::byte> head) : covered_(head.begin(), head.end()) {
    covered_.erase(covered_.begin() + kCrcAt, covered_.begin() + kCheckedFrom);
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
  std::vector<std::span<const std::byte>> own;  // blocks with bytes of their own
  if (version < 3) {
    append(out, uint32_t{kBlockBits});
    append(out, asked);
    append(out, bound);
    for (const uint64_t dim : shape) append(out, dim);
    for (const auto& block : blocks) append(out, static_cast<uint32_t>(block.size()));
    own.assign(blocks.begin(), blocks.end());
  } else {
    write_rest(out);
    std::span<const std::byte> before;
    uint64_t same = 0;
    const auto end_run = [&] {
      if (same == 0) return;
      append_number(out, 0);
      append_number(out, same);
      same = 0;
    };
    for (const auto& block : blocks) {
      if (block.size() == before.size() && (block.empty() || block.data() == before.data())) {
        ++same;
        continue;
      }
      end_run();
      append_number(out, block.size() + 1);
      own.push_back(block);
      before = block;
    }
    end_run();
  }
  Checksum checksum(out);
  for (const auto& block : own) checksum.add_end_of(block);
  const uint32_t crc = checksum.value();
  std::memcpy(out.data() + kCrcAt, &crc, sizeof crc);
  return out;
}

// Bounds and shape, in version 3.
void Container::write_rest(std::vector<std::byte>& out) const {
  if (kind != BoundKind::kLossless) append(out, asked);
  if (kind == BoundKind::kRelative) append(out, bound);
  for (const uint64_t dim : shape) append_number(out, dim);
}

std::vector<std::byte> Container::write_whole(std::span<const std::byte> frame) const {
  std::vector<std::byte> out;
  for (const char c : kMagic) append(out, c);
  append(out, static_cast<uint8_t>(version));
  append(out, static_cast<uint8_t>(number_of(element) + (complex ? kComplex : 0) + kFramed));
  append(out, static_cast<uint8_t>(kind));
  append(out, static_cast<uint8_t>(shape.size()));
  append(out, uint32_t{0});
  write_rest(out);
  whole->write(out);
  append_number(out, frame.size());
  Checksum checksum(out);
  const size_t begin = out.size();
  out.insert(out.end(), frame.begin(), frame.end());
  append(out, crc32c(frame.data(), frame.size()));
  checksum.add_end_of(std::span(out).subspan(begin));
  const uint32_t crc = checksum.value();
  std::memcpy(out.data() + kCrcAt, &crc, sizeof crc);
  out.resize(out.size() + padding(out.size()));
  return out;
}

size_t Container::padding(size_t bytes) const {
  if (version < 3) return 0;
  const uint64_t whole = values() * size_of(element);
  const uint64_t least =
      (whole >> kMostPacked) + ((whole & ((1u << kMostPacked) - 1)) != 0 ? 1 : 0);
  return least > bytes ? static_cast<size_t>(least - bytes) : 0;
}

namespace {

// The header up to the bounds, of all versions.
Container read_kinds(std::span<const std::byte> payload) {
  const std::byte* in = payload.data();
  if (payload.size() >= 4 && std::memcmp(in, kMagic, 4) != 0) {
    throw PayloadError("the payload does not begin with CGXB: it is none of torch_cgx.bounded");
  }
  if (payload.size() < kCheckedFrom) {
    throw PayloadError(str_of("the payload is cut: it has ", payload.size(),
                              " bytes, its header alone has more than ", kCheckedFrom));
  }
  const int version = get<uint8_t>(in + 4);
  if (version < kFirstVersion || version > kLastVersion) {
    throw PayloadError(str_of("the payload has version ", version,
                              " of the format, this reader knows ", kFirstVersion, " to ",
                              kLastVersion, ": install a newer torch_cgx"));
  }
  Container header;
  header.version = version;
  const int whole_type = get<uint8_t>(in + 5), kind = get<uint8_t>(in + 6);
  if (whole_type >= kFramed && version >= 3) header.whole.emplace();
  const int type = header.whole ? whole_type - kFramed : whole_type;
  const int element = type % kComplex;
  header.complex = type >= kComplex;
  if (type >= 2 * kComplex || element < 1 || element > kLastElement ||
      (header.complex && (element > 3))) {
    throw PayloadError(
        str_of("the payload's type is ", whole_type, ", which the format does not know"));
  }
  header.element = element_of(element);
  if (kind > kLastBoundKind)
    throw PayloadError(str_of("the payload's kind of bound is ", kind, ", allowed: 0 to 3"));
  header.kind = static_cast<BoundKind>(kind);
  header.shape.resize(get<uint8_t>(in + 7));
  if (header.shape.size() > Container::kMostDims) {
    throw PayloadError(
        str_of("the payload has ", header.shape.size(), " dimensions, allowed: 0 to 64"));
  }
  return header;
}

// A tensor's size in bytes fits 63 bits, and so do its strides, even if it is empty.
void check_shape(const Container& header) {
  int64_t values = header.complex ? 2 : 1;
  bool fits = true, empty = false;
  for (const uint64_t dim : header.shape) {
    empty = empty || dim == 0;
    fits = fits && !__builtin_mul_overflow(values, std::max<uint64_t>(dim, 1), &values);
  }
  if (!fits || (!empty && values > INT64_MAX / 16))
    throw PayloadError("the payload's shape has more values than a tensor can have");
}

// The rest of the header and the table, before version 3. Returns where the blocks begin.
uint64_t read_fixed(std::span<const std::byte> payload, OpenContainer& open) {
  Container& header = open.header;
  const std::byte* const in = payload.data();
  const size_t dims = header.shape.size(), table = kFixedBytes + 8 * dims;
  if (payload.size() < table) throw PayloadError("the payload is cut: its shape is not complete");
  if (get<uint32_t>(in + 12) != kBlockBits) {
    throw PayloadError(
        str_of("the payload's blocks have 2^", get<uint32_t>(in + 12), " values, allowed: 2^16"));
  }
  header.asked = get<double>(in + 16);
  header.bound = get<double>(in + 24);
  check_asked(header);
  for (size_t i = 0; i < dims; ++i) header.shape[i] = get<uint64_t>(in + kFixedBytes + 8 * i);
  check_shape(header);
  const uint64_t blocks = header.blocks();
  if (blocks > (payload.size() - table) / 4) {
    throw PayloadError(str_of("the payload is cut: it has ", payload.size(),
                              " bytes, and its shape needs a table of ", blocks, " blocks"));
  }
  const uint64_t first = table + 4 * blocks;
  uint64_t at = first;
  for (uint64_t block = 0; block < blocks; ++block) {
    const uint64_t end = at + get<uint32_t>(in + table + 4 * block);
    open.places.push_back({at, end});
    at = end;
  }
  return first;
}

// The same from version 3 on.
uint64_t read_numbers(std::span<const std::byte> payload, OpenContainer& open) {
  Container& header = open.header;
  std::span<const std::byte> in = payload.subspan(kCheckedFrom);
  if (header.kind != BoundKind::kLossless) header.asked = header.bound = take<double>(in);
  if (header.kind == BoundKind::kRelative) header.bound = take<double>(in);
  check_asked(header);
  for (uint64_t& dim : header.shape) dim = take_number(in);
  check_shape(header);
  if (header.padding(payload.size()) > 0) {
    throw PayloadError(str_of("the payload is cut: it has ", payload.size(),
                              " bytes, and its shape needs ", header.padding(payload.size()),
                              " more"));
  }
  if (header.whole) {
    header.whole = Whole::read(in);
    const uint64_t bytes = take_number(in), frame = payload.size() - in.size();
    if (in.size() < kCrcBytes || bytes > in.size() - kCrcBytes) {
      throw PayloadError(
          str_of("the payload is cut: it has ", payload.size(), " bytes, its frame ", bytes));
    }
    open.places.push_back({frame, frame + bytes + kCrcBytes});
    return frame;
  }
  const uint64_t blocks = header.blocks();
  open.places.reserve(blocks);
  OpenContainer::Place before{0, 0};
  uint64_t at = 0;
  while (open.places.size() < blocks) {
    const uint64_t number = take_number(in);
    if (number == 0) {
      const uint64_t same = take_number(in), left = blocks - open.places.size();
      if (same == 0 || same > left) {
        throw PayloadError(str_of("the payload's table says that ", same,
                                  " blocks are as the one before, allowed: 1 to ", left));
      }
      open.places.insert(open.places.end(), same, before);
      continue;
    }
    if (number > UINT32_MAX) {
      throw PayloadError(str_of("the payload's table has a block of ", number - 1, " bytes"));
    }
    before = {at, at + number - 1};
    open.places.push_back(before);
    at = before.end;
  }
  const uint64_t first = payload.size() - in.size();
  for (auto& place : open.places) {
    place.begin += first;
    place.end += first;
  }
  return first;
}

}  // namespace

OpenContainer OpenContainer::read(std::span<const std::byte> payload) {
  OpenContainer open;
  open.header = read_kinds(payload);
  const bool fixed = open.header.version < 3;
  const uint64_t first = fixed ? read_fixed(payload, open) : read_numbers(payload, open);
  uint64_t end = first;
  for (const Place& place : open.places) end = std::max(end, place.end);
  if (end > payload.size() || (end < payload.size() && fixed)) {
    throw PayloadError(str_of("the payload ",
                              end > payload.size() ? "is cut" : "goes on after its end",
                              ": it has ", payload.size(), " bytes, its table says ", end));
  }
  const auto padding = payload.subspan(end);
  const bool zeros = std::all_of(padding.begin(), padding.end(),
                                 [](std::byte byte) { return byte == std::byte{0}; });
  if (!zeros || padding.size() != open.header.padding(end)) {
    throw PayloadError(str_of("the payload goes on after its end: it has ", payload.size(),
                              " bytes, its table says ", end, ", and ", open.header.padding(end),
                              " zeros"));
  }
  Checksum checksum(payload.first(first));
  uint64_t covered = first;
  for (const Place& place : open.places) {
    // Blocks that are as the one before have been counted.
    if (place.begin < covered || (place.begin == place.end && !fixed)) continue;
    checksum.add_end_of(payload.subspan(place.begin, place.end - place.begin));
    covered = place.end;
  }
  if (get<uint32_t>(payload.data() + kCrcAt) != checksum.value()) {
    throw PayloadError(
        "the checksum of the payload's header differs: bytes were altered, or blocks exchanged");
  }
  if (open.header.whole) {
    Place& frame = open.places[0];
    frame.end -= kCrcBytes;
    const uint32_t crc = crc32c(payload.data() + frame.begin, frame.end - frame.begin);
    if (crc != get<uint32_t>(payload.data() + frame.end)) {
      throw PayloadError("the checksum of the payload's frame differs: bytes were altered");
    }
  }
  return open;
}

}  // namespace cgx::bounded
