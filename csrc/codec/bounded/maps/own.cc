#include "codec/bounded/maps/own.h"

#include <algorithm>
#include <cmath>

#include "codec/bounded/bytes.h"

namespace cgx::bounded {
namespace {

uint64_t sign_of(DType element) { return uint64_t{1} << (8 * size_of(element) - 1); }

}  // namespace

uint64_t place_among_all(DType element, uint64_t bits) {
  const uint64_t sign = sign_of(element), mask = sign | (sign - 1);
  if (!is_floating(element)) {
    // Whole numbers in their order, as the type's words have it.
    const bool is_signed =
        element != DType::kUInt8 && element != DType::kUInt16 && element != DType::kBool;
    return is_signed ? bits ^ sign : bits;
  }
  return (bits & sign) != 0 ? ~bits & mask : bits | sign;
}

uint64_t bits_at_place(DType element, uint64_t place) {
  const uint64_t sign = sign_of(element), mask = sign | (sign - 1);
  if (!is_floating(element)) return place_among_all(element, place);  // its own inverse
  return (place & sign) != 0 ? place & (sign - 1) : ~place & mask;
}

int64_t Palette::number_of(DType element, uint64_t bits) const {
  const uint64_t place = place_among_all(element, bits);
  const auto at = std::lower_bound(places.begin(), places.end(), place);
  return at != places.end() && *at == place ? at - places.begin() : -1;
}

void Palette::write(std::vector<std::byte>& out) const {
  append_number(out, places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    append_number(out, i == 0 ? places[0] : places[i] - places[i - 1] - 1);
  }
}

Palette Palette::read(DType element, std::span<const std::byte> in) {
  const uint64_t count = take_number(in);
  if (count < 1 || count > 65536) {
    throw PayloadError(str_of("a palette has ", count, " values, allowed: 1 to 65536"));
  }
  const uint64_t sign = sign_of(element), greatest = sign | (sign - 1);
  Palette palette;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t step = take_number(in);
    const uint64_t least = i == 0 ? 0 : palette.places.back() + 1;
    if ((i > 0 && palette.places.back() == greatest) || step > greatest - least) {
      throw PayloadError("a palette has a value that its type does not have");
    }
    palette.places.push_back(least + step);
  }
  if (!in.empty()) throw PayloadError("a block goes on behind its palette");
  return palette;
}

void Multiples::write(std::vector<std::byte>& out) const {
  out.push_back(static_cast<std::byte>(quotients ? 1 : 0));
  append_number(out, width);
  append_number(out, start);
  for (const double unit : units) append(out, unit);
}

Multiples Multiples::read(size_t n, std::span<const std::byte> in) {
  Multiples out;
  const auto way = take<uint8_t>(in);
  const uint64_t width = take_number(in), start = take_number(in);
  if (way > 1 || width > 2 * n || start >= std::max<uint64_t>(width, 1)) {
    throw PayloadError(str_of("multiples are written in the way ", static_cast<int>(way),
                              ", in rows of ", width, " values from ", start, " on"));
  }
  out.quotients = way == 1;
  out.width = static_cast<uint32_t>(width);
  out.start = static_cast<uint32_t>(start);
  const uint64_t rows = width == 0 ? 1 : (start + n + width - 1) / width;
  if (in.size() != 8 * rows) {
    throw PayloadError(
        str_of("units of multiples have ", in.size(), " bytes, allowed: ", 8 * rows));
  }
  for (uint64_t row = 0; row < rows; ++row) {
    const double unit = take<double>(in);
    if (!(unit > 0 && std::isfinite(unit))) {
      throw PayloadError(str_of("multiples have the unit ", unit, ", allowed: above 0"));
    }
    out.units.push_back(unit);
  }
  return out;
}

}  // namespace cgx::bounded
