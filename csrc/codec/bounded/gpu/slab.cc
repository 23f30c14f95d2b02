#include "codec/bounded/gpu/slab.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/maps/curve.h"
#include "codec/bounded/maps/order.h"
#include "codec/bounded/quads.h"

namespace cgx::bounded {
namespace {

// A list with more than one of so many values is not brought to the host, which then needs the values.
constexpr size_t kListedOf = 64;

using on_gpu::BlockForm;
using on_gpu::Parts;
using on_gpu::parts_of;

on_gpu::ValueType type_of(DType element) {
  on_gpu::ValueType type{};
  type.bytes = static_cast<uint32_t>(size_of(element));
  type.floating = is_floating(element) ? 1 : 0;
  if (is_floating(element)) type.layout = layout_of(element);
  type.extends = with_bits(element, []<typename Bits>() { return std::is_signed_v<Bits>; }) ? 1 : 0;
  type.is_bool = element == DType::kBool ? 1 : 0;
  return type;
}

BlockForm form_of(const BlockHeader& header, size_t n) {
  BlockForm form{};
  form.n = static_cast<uint32_t>(n);
  form.to = form.n;
  form.map = static_cast<int>(header.map) > kLastOnDevice ? Map::kRaw : header.map;
  if (form.map <= Map::kConstant) return form;
  form.predictor = header.predictor;
  form.width = static_cast<uint8_t>(header.width);
  form.shift = static_cast<uint8_t>(header.shift);
  form.signed_zero = header.signed_zero ? 1 : 0;
  form.step = header.step;
  form.base = header.base;
  form.origin = header.origin;
  form.outliers = header.outliers;
  form.specials = header.specials;
  return form;
}

// As Decoder::decode_words().
int64_t most_of(const Maps& maps, const BlockHeader& header) {
  if (header.map != Map::kGrid) return 0;
  const bool wide = maps.element() == DType::kFloat64;
  if (wide && maps.version() == 1) return -1;
  if (header.predictor == Predictor::kCurve) {
    return wide ? kMostWord<int64_t> : kMostWord<int32_t>;
  }
  return wide ? most_word<int64_t>(header.step) : most_word<int32_t>(header.step);
}

void put(std::byte* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

Slab::Slab(std::shared_ptr<const Maps> maps, size_t values)
    : maps_(std::move(maps)),
      values_(values),
      forms_((values + kBlockValues - 1) / kBlockValues),
      chosen_(forms_.size()),
      samples_(forms_.size()),
      fields_(forms_.size()) {}

Slab::Slab(std::shared_ptr<const Maps> maps, size_t values, std::span<const std::byte> forms,
           size_t reach, bool whole)
    : Slab(std::move(maps), values) {
  if (forms.size() != forms_.size() * sizeof(BlockForm)) {
    throw ConfigError(str_of("forms have ", forms.size(), " bytes, allowed for ", blocks(),
                             " blocks: ", forms_.size() * sizeof(BlockForm)));
  }
  if (!forms.empty()) std::memcpy(forms_.data(), forms.data(), forms.size());
  for (size_t block = 0; block < blocks(); ++block) check_form(block, reach, whole);
  lay_out();
}

void Slab::check_form(size_t block, size_t reach, bool whole) const {
  const BlockForm& form = forms_[block];
  const auto within = [&](int64_t place) {
    return place >= 0 && static_cast<uint64_t>(place) <= reach;
  };
  const size_t n = values_of(block);
  const auto width = static_cast<int>(8 * size_of(maps_->element()));
  const auto is_from = [&](int64_t least, int64_t greatest) {
    return form.origin >= least && form.origin <= greatest;
  };
  // The device has the tables of maps_->bounded() only; the origin decides which of their entries it reads.
  const bool mapped = form.map <= Map::kOrder || form.map == maps_->bounded();
  const bool curved = form.predictor != Predictor::kCurve || form.map == Map::kGrid;
  bool known = mapped && curved && form.predictor <= Predictor::kCurve && form.width <= width &&
               form.shift < width;
  if (known && form.map == Map::kOrder)
    known = is_from(0, last_origin(maps_->element(), form.shift));
  if (known && form.map == Map::kLogGrid) {
    known = is_from(LogTable::kLeastExponent, LogTable::kGreatestExponent);
  }
  const bool fits = form.n == n && form.from <= form.to && form.to <= n && form.outliers <= n &&
                    form.specials <= n;
  // As in payloads. Encoding has room for special values whatever the map.
  known = known && (whole || form.map != Map::kOrder || form.specials == 0);
  // A place may be negative where no value of the block's beginning is wanted.
  const bool reaches = form.value >= -static_cast<int64_t>(kBlockValues) &&
                       form.value <= static_cast<int64_t>(reach) &&
                       within(form.value + form.from) && within(form.value + form.to) &&
                       (!whole || (form.value >= 0 && within(form.value + form.n)));
  if (!known || !fits || !reaches) {
    throw ConfigError(str_of("forms: block ", block, " of ", n,
                             " values is written in no known way, "
                             "or outside of ",
                             reach, " values"));
  }
}

size_t Slab::values_of(size_t block) const {
  return std::min(kBlockValues, values_ - block * kBlockValues);
}

size_t Slab::look_bytes() const {
  const size_t tried = maps_->bounded() == Map::kGrid ? kTried * kCurveRun : 0;
  return sizeof(on_gpu::LookedAt) + (kSampled + tried) * size_of(maps_->element());
}

on_gpu::LookCall Slab::look_call() const {
  on_gpu::LookCall call{};
  call.values = values_;
  call.count = blocks();
  call.stride = look_bytes();
  call.type = type_of(maps_->element());
  call.block_values = kBlockValues;
  call.tries_curves = maps_->bounded() == Map::kGrid ? 1 : 0;
  return call;
}

std::vector<uint32_t> Slab::field_places(Encoder& encoder, size_t block,
                                         std::span<const uint64_t> shape, uint64_t first) {
  Field& field = fields_[block];
  const size_t n = values_of(block);
  field.geometry = field::geometry_of(shape, first, n);
  encoder.place(field.geometry);
  // They do not depend on where in a plane a block begins, so most blocks have the same.
  const auto alike = [&](const field::Geometry& a, const field::Geometry& b) {
    return a.width == b.width && a.height == b.height && (a.planes(n) > 1) == (b.planes(n) > 1);
  };
  if (block > 0 && n == values_of(block - 1) &&
      alike(field.geometry, fields_[block - 1].geometry)) {
    return field.places = fields_[block - 1].places;
  }
  return field.places = encoder.field_places(n);
}

bool Slab::choose_form(Encoder& encoder, size_t block, const std::byte* looked,
                       const std::byte* values) {
  const auto found = get<on_gpu::LookedAt>(looked, 0);
  const size_t n = values_of(block);
  Looked known;
  known.sample = looked + sizeof found;
  known.tried = known.sample + kSampled * size_of(maps_->element());
  known.seen = {found.greatest, found.differ, found.any};
  known.least = found.least;
  samples_[block] = known.sample;
  Field& field = fields_[block];
  encoder.place(field.geometry);
  field.needs_values = encoder.needs_values(known, n, field.places, values);
  chosen_[block] = encoder.choose_form(known, n);
  field.needs_values = field.needs_values || chosen_[block].needs_values;
  BlockForm& form = forms_[block] = form_of(chosen_[block].header, n);
  form.value = static_cast<int64_t>(block * kBlockValues);
  form.inverse = chosen_[block].inverse;
  if (form.map > Map::kConstant)
    form.outliers = form.specials = static_cast<uint32_t>(n / kListedOf);
  return !field.needs_values;
}

bool Slab::adopt(Encoder& encoder, size_t block, const std::byte* parts) const {
  const BlockForm& form = forms_[block];
  if (fields_[block].needs_values) return false;
  if (form.map == Map::kConstant) {
    encoder.adopt_constant(samples_[block], form.n);
    return true;
  }
  const std::byte* const at = parts + form.parts;
  const Parts places = parts_of(form, static_cast<uint32_t>(size_of(maps_->element())));
  Form chosen = chosen_[block];
  chosen.header.outliers = get<uint32_t>(at, 0);
  chosen.header.specials = get<uint32_t>(at, 4);
  const bool listed =
      chosen.header.outliers <= form.outliers && chosen.header.specials <= form.specials;
  if (!listed || Encoder::sample_failed(chosen.header, form.n)) return false;
  encoder.adopt(chosen,
                {at + places.symbols, at + places.bytes, at + places.bits, at + places.nodes,
                 at + places.outliers, at + places.places, at + places.specials, places.stride},
                form.n);
  return true;
}

void Slab::open(size_t block, const OpenBlock& opened, int64_t value, size_t from, size_t to) {
  BlockForm& form = forms_[block] = form_of(opened.header, opened.n);
  form.most = most_of(*maps_, opened.header);
  form.value = value;
  form.from = static_cast<uint32_t>(from);
  form.to = static_cast<uint32_t>(to);
  if (form.map != Map::kConstant || opened.plain.empty()) return;
  with_bits(maps_->element(), [&]<typename Bits>() {
    form.base = static_cast<int64_t>(get<Bits>(opened.plain.data(), 0));
  });
}

void Slab::fill(size_t block, const OpenBlock& opened, std::span<const std::byte> content,
                std::byte* parts) const {
  const BlockForm& form = forms_[block];
  const DType element = maps_->element();
  const Parts places = parts_of(form, static_cast<uint32_t>(size_of(element)));
  std::byte* const to = parts + form.parts;
  if (form.map == Map::kConstant) return;
  if (static_cast<int>(opened.header.map) > kLastOnDevice) {
    std::vector<std::byte> values(form.n * size_of(element));
    Decoder(maps_).decode(opened, content, values.data());
    return put(to + places.symbols, values.data(), values.size());
  }
  if (form.map == Map::kRaw)
    return put(to + places.symbols, opened.plain.data(), opened.plain.size());
  content = opened.content_of(content);
  const BlockHeader& header = opened.header;
  const BlockSizes sizes(header, element, form.n);
  const size_t n = form.n, stride = places.stride;
  auto* const symbols = reinterpret_cast<uint8_t*>(to + places.symbols);
  if (header.quads || header.windowed) {
    unpack_symbols(opened, content,
                   symbols);  // room for whole quads: the stride is a multiple of 64
  } else {
    put(to + places.symbols, content.data(), n);
  }
  const bool coded = header.low == LowBits::kCoded;
  const std::byte* const low = coded ? content.data() + sizes.symbols : opened.low.data();
  const size_t planes = static_cast<size_t>(header.width) / 8;
  for (size_t plane = 0; plane < planes; ++plane) {
    put(to + places.bytes + plane * stride, low + plane * n, n);
  }
  put(to + places.bits, opened.low.data() + sizes.low_bytes * n, sizes.low_bits * sizes.bit_stride);
  const std::byte* at = content.data() + sizes.symbols + sizes.coded_low;
  if (sizes.nodes > 0) unpack_nodes(opened, at, reinterpret_cast<int32_t*>(to + places.nodes));
  at += sizes.nodes;
  put(to + places.outliers, at, sizes.outliers);
  at += sizes.outliers;
  put(to + places.places, at, header.specials * size_t{2});
  at += header.specials * size_t{2};
  put(to + places.specials, at, header.specials * size_of(element));
}

size_t Slab::lay_out() {
  size_t at = 0;
  for (BlockForm& form : forms_) {
    form.parts = at;
    at += parts_of(form, static_cast<uint32_t>(size_of(maps_->element()))).end;
  }
  return at;
}

size_t Slab::bytes() const {
  if (forms_.empty()) return 0;
  const auto each = static_cast<uint32_t>(size_of(maps_->element()));
  return forms_.back().parts + parts_of(forms_.back(), each).end;
}

Slab::Tables Slab::tables() const {
  const auto any = [&](auto&& of) { return std::any_of(forms_.begin(), forms_.end(), of); };
  const auto after = [](size_t at, size_t bytes) { return on_gpu::up(at + bytes, 8); };
  Tables tables{};
  const bool lattice = any([](const BlockForm& p) { return p.map == Map::kLattice; });
  const bool log_grid = any([](const BlockForm& p) { return p.map == Map::kLogGrid; });
  const bool curves = any([](const BlockForm& p) { return p.predictor == Predictor::kCurve; });
  const Lattice& table = maps_->lattice();
  tables.words = forms_.size() * sizeof(BlockForm);
  tables.values = after(tables.words, lattice ? table.table_of_words().size_bytes() : 0);
  tables.log_table = after(tables.values, lattice ? table.table_of_values().size_bytes() : 0);
  tables.curves = after(tables.log_table, log_grid ? sizeof(LogTable) : 0);
  tables.end = after(tables.curves, curves ? sizeof(CurveTables) : 0);
  return tables;
}

std::vector<std::byte> Slab::image() const {
  const Tables at = tables();
  std::vector<std::byte> image(at.end);
  put(image.data(), forms_.data(), at.words);
  if (at.values > at.words) {
    const Lattice& table = maps_->lattice();
    put(&image[at.words], table.table_of_words().data(), table.table_of_words().size_bytes());
    put(&image[at.values], table.table_of_values().data(), table.table_of_values().size_bytes());
  }
  if (at.curves > at.log_table) {
    put(&image[at.log_table], &maps_->log_grid().table(), sizeof(LogTable));
  }
  if (at.end > at.curves) put(&image[at.curves], &curve_tables(), sizeof(CurveTables));
  return image;
}

on_gpu::BlocksCall Slab::blocks_call(const std::byte* image) const {
  const Tables at = tables();
  on_gpu::BlocksCall call{};
  call.forms = reinterpret_cast<const BlockForm*>(image);
  call.count = blocks();
  call.bound = maps_->bound();
  call.type = type_of(maps_->element());
  call.lattice_most = maps_->lattice().most();
  call.lattice_words = reinterpret_cast<const int16_t*>(image + at.words);
  call.lattice_values = reinterpret_cast<const uint16_t*>(image + at.values) + call.lattice_most;
  call.log_table = reinterpret_cast<const LogTable*>(image + at.log_table);
  const auto* curves = reinterpret_cast<const CurveTables*>(image + at.curves);
  call.draw = curves->draw[0];
  call.fit = curves->fit[0];
  return call;
}

}  // namespace cgx::bounded
