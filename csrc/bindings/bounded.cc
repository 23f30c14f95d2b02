#include "bindings/bounded.h"

#include <pybind11/stl.h>
#include <sys/mman.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/adapters/gil.h"
#include "codec/bounded/arena.h"
#include "codec/bounded/container.h"
#include "codec/bounded/decode/decoder.h"
#include "codec/bounded/encode/encoder.h"
#include "codec/bounded/encode/repeats.h"
#include "codec/bounded/encode/whole.h"
#include "codec/bounded/gpu/slab.h"
#include "codec/bounded/range.h"
#include "tensors/memory.h"

namespace py = pybind11;

namespace cgx {
namespace bounded {
namespace {

// Bytes of any object with a contiguous buffer of bytes, for as long as this lives.
class Bytes {
 public:
  explicit Bytes(const py::buffer& buffer) : info_(buffer.request()) {
    if (info_.itemsize != 1 || info_.ndim > 1 || (info_.ndim == 1 && info_.strides[0] != 1)) {
      throw ConfigError("a payload is contiguous bytes");
    }
  }
  std::span<const std::byte> span() const {
    return {static_cast<const std::byte*>(info_.ptr), static_cast<size_t>(info_.size)};
  }

 private:
  py::buffer_info info_;
};

py::memoryview view_of(std::span<const std::byte> bytes) {
  // A view of no bytes must still point to something.
  static const std::byte kNothing{};
  return py::memoryview::from_memory(bytes.empty() ? &kNothing : bytes.data(),
                                     static_cast<py::ssize_t>(bytes.size()));
}

DType dtype_of_number(int code) {
  if (code < 1 || code > kLastElement)
    throw ConfigError(str_of("type is ", code, ", allowed: 1 to 13"));
  return element_of(code);
}

BoundKind kind_of(int code) {
  if (code < 0 || code > kLastBoundKind)
    throw ConfigError(str_of("kind is ", code, ", allowed: 0 to 3"));
  return static_cast<BoundKind>(code);
}

// The values [first, first + n) of a tensor.
// shape, at: of the tensor that they are from, and the first one's place in it; x and `first` itself
// where not given.
void encode(Encoder& encoder, const at::Tensor& x, size_t first, size_t n,
            const std::optional<std::vector<uint64_t>>& shape, std::optional<uint64_t> at) {
  const std::vector<uint64_t> own(x.sizes().begin(), x.sizes().end());
  encoder.place(field::geometry_of(shape ? *shape : own, at.value_or(first), n));
  const std::byte* values = host_bytes("x", x, size_of(encoder.maps().element()), first, n);
  const WithoutGil no_gil;
  encoder.encode(values, n);
}

void finish(Encoder& encoder, const py::buffer& frame, Arena& arena, size_t number) {
  const Bytes bytes(frame);
  const WithoutGil no_gil;
  arena.put(number, encoder.finish(bytes.span()));
}

Rearranged way_of(int number) {
  if (number < 0 || number >= kRearranged) {
    throw ConfigError(str_of("way is ", number, ", allowed: 0 to ", kRearranged - 1));
  }
  return static_cast<Rearranged>(number);
}

void finish_bytes(Encoder& encoder, int way, const py::buffer& frame, Arena& arena, size_t number) {
  const Bytes bytes(frame);
  const Rearranged known = way_of(way);
  const WithoutGil no_gil;
  arena.put(number, encoder.finish_bytes(known, bytes.span()));
}

// A block, and the object that has its bytes.
struct Opened {
  OpenBlock block;
  py::buffer owner;
  std::shared_ptr<Bytes> bytes;
};

Opened open_block(const Decoder& decoder, const py::buffer& block, size_t n) {
  auto bytes = std::make_shared<Bytes>(block);
  const auto open = [&] {
    const WithoutGil no_gil;
    return decoder.open(bytes->span(), n);
  };
  return {open(), block, bytes};
}

// Decodes the values [low, high) of a block into y[first], y[first + 1] and so on.
void decode(Decoder& decoder, const Opened& opened, const py::buffer& content, size_t low,
            size_t high, const at::Tensor& y, size_t first) {
  const size_t n = opened.block.n;
  if (low > high || high > n) {
    throw ConfigError(str_of("values ", low, " to ", high, ", allowed: 0 to ", n));
  }
  const size_t bytes_each = size_of(decoder.maps().element());
  std::byte* to = host_bytes("y", y, bytes_each, first, high - low);
  const Bytes bytes(content);
  const WithoutGil no_gil;
  if (low == 0 && high == n) return decoder.decode(opened.block, bytes.span(), to);
  const auto whole = std::make_unique_for_overwrite<std::byte[]>(n * bytes_each);
  decoder.decode(opened.block, bytes.span(), whole.get());
  std::copy_n(whole.get() + low * bytes_each, (high - low) * bytes_each, to);
}

// ---- blocks of a tensor on a GPU ----

void check_block(const Slab& slab, size_t block) {
  if (block >= slab.blocks()) {
    throw ConfigError(str_of("block is ", block, ", allowed: below ", slab.blocks()));
  }
}

// looked: of all blocks, as the operator bounded_look gives it; it must stay.
// values: of the type, at the block's places from `first` on.
void choose_form(Slab& slab, Encoder& encoder, size_t block, const at::Tensor& looked,
                 const std::optional<at::Tensor>& values, size_t first, size_t count) {
  check_block(slab, block);
  const size_t bytes = slab.look_bytes();
  const std::byte* of_block = host_bytes("looked", looked, 1, block * bytes, bytes);
  const size_t each = size_of(encoder.maps().element());
  const std::byte* at_places = values ? host_bytes("values", *values, each, first, count) : nullptr;
  const WithoutGil no_gil;
  slab.choose_form(encoder, block, of_block, at_places);
}

// Places in the tensor of the slab, as torch indexes with them.
at::Tensor field_places(Slab& slab, Encoder& encoder, size_t block,
                        const std::vector<uint64_t>& shape, uint64_t first) {
  check_block(slab, block);
  const std::vector<uint32_t> places = slab.field_places(encoder, block, shape, first);
  at::Tensor out = at::empty({static_cast<int64_t>(places.size())}, at::kLong);
  auto* const to = out.mutable_data_ptr<int64_t>();
  const auto begin = static_cast<int64_t>(block * kBlockValues);
  for (size_t i = 0; i < places.size(); ++i) to[i] = begin + static_cast<int64_t>(places[i]);
  return out;
}

// parts: of all blocks.
bool adopt(const Slab& slab, Encoder& encoder, size_t block, const at::Tensor& parts) {
  check_block(slab, block);
  const std::byte* of_all = host_bytes("parts", parts, 1, 0, slab.bytes());
  const WithoutGil no_gil;
  return slab.adopt(encoder, block, of_all);
}

void fill(const Slab& slab, size_t block, const Opened& opened, const py::buffer& content,
          const at::Tensor& parts) {
  check_block(slab, block);
  std::byte* of_all = host_bytes("parts", parts, 1, 0, slab.bytes());
  const Bytes bytes(content);
  const WithoutGil no_gil;
  slab.fill(block, opened.block, bytes.span(), of_all);
}

py::tuple read_container(const py::buffer& payload) {
  const Bytes bytes(payload);
  const OpenContainer open = OpenContainer::read(bytes.span());
  const Container& header = open.header;
  std::vector<std::pair<uint64_t, uint64_t>> places;
  places.reserve(open.places.size());
  for (const auto& place : open.places) places.emplace_back(place.begin, place.end);
  return py::make_tuple(number_of(header.element), header.complex, static_cast<int>(header.kind),
                        header.asked, header.bound, header.version, header.shape, places,
                        header.whole);
}

void write_container(int element, bool complex, int kind, double asked, double bound,
                     std::vector<uint64_t> shape, Arena& arena) {
  Container header{dtype_of_number(element), complex, kind_of(kind), asked, bound,
                   std::move(shape)};
  const std::vector<std::byte> head = header.write(arena.blocks());
  arena.close(head, header.padding(head.size() + arena.block_bytes()));
}

// ---- tensors as one frame ----

py::bytes bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::bytes write_whole(int element, bool complex, int kind, double asked, double bound,
                      std::vector<uint64_t> shape, const Whole& whole, const py::buffer& frame) {
  Container header{dtype_of_number(element), complex, kind_of(kind), asked, bound,
                   std::move(shape)};
  header.whole = whole;
  return bytes_of(header.write_whole(Bytes(frame).span()));
}

std::span<const std::byte> all_bytes(const at::Tensor& x, size_t each) {
  const auto n = static_cast<size_t>(x.numel());
  return {host_bytes("x", x, each, 0, n), n * each};
}

// Returns the frame's form and content, or None if there is no such frame.
template <typename Find>
py::object content_by(const Find& find) {
  const auto found = [&] {
    const WithoutGil no_gil;
    return find();
  }();
  if (!found) return py::none();
  return py::make_tuple(found->whole, bytes_of(found->content));
}

// Decodes the values [first, last) of n. y has room for exactly these.
void decode_whole(const Whole& whole, const Maps& maps, const py::buffer& content, uint64_t n,
                  uint64_t first, uint64_t last, const at::Tensor& y) {
  if (first > last || last > n) {
    throw ConfigError(str_of("values ", first, " to ", last, ", allowed: 0 to ", n));
  }
  std::byte* to = host_bytes("y", y, size_of(maps.element()), 0, last - first);
  const Bytes bytes(content);
  const WithoutGil no_gil;
  whole.decode(maps, bytes.span(), n, first, last, to);
}

void bind_whole(py::module_& module) {
  py::class_<Whole>(module, "BoundedWhole")
      .def(py::init<>())
      .def("content_bytes", &Whole::content, py::arg("maps"), py::arg("n"))
      .def("decode", &decode_whole, py::arg("maps"), py::arg("content"), py::arg("n"),
           py::arg("first"), py::arg("last"), py::arg("y"));
  module.def("bounded_write_whole", &write_whole, py::arg("element"), py::arg("complex"),
             py::arg("kind"), py::arg("asked"), py::arg("bound"), py::arg("shape"),
             py::arg("whole"), py::arg("frame"));
  module.def(
      "bounded_repeats",
      [](const at::Tensor& x) {
        const auto each = static_cast<size_t>(x.itemsize());
        const auto bytes = all_bytes(x, each);
        const WithoutGil no_gil;
        return repeats(bytes, each);
      },
      py::arg("x"));
  module.def(
      "bounded_words_of_all",
      [](const Maps& maps, const at::Tensor& x) {
        const auto bytes = all_bytes(x, size_of(maps.element()));
        return content_by([&] { return words_of_all(maps, bytes); });
      },
      py::arg("maps"), py::arg("x"));
  module.def(
      "bounded_mostly_of_all",
      [](int element, const at::Tensor& x) {
        const DType dtype = dtype_of_number(element);
        const auto bytes = all_bytes(x, size_of(dtype));
        return content_by([&] { return mostly_of_all(dtype, bytes); });
      },
      py::arg("element"), py::arg("x"));
}

std::string name_of(const OpenBlock& block) {
  constexpr const char* kMaps[] = {"raw",       "constant", "order", "grid",
                                   "lattice",   "log grid", "field", "palette",
                                   "multiples", "mostly",   "bytes"};
  return kMaps[static_cast<size_t>(block.header.map)];
}

py::object predictor_of(const OpenBlock& block) {
  constexpr const char* kPredictors[] = {"none", "mean", "previous", "line", "curve"};
  const Map map = block.header.map;
  const bool none = map == Map::kField || map == Map::kMostly || map == Map::kBytes;
  if (map <= Map::kConstant || none) return py::none();
  return py::str(kPredictors[static_cast<size_t>(block.header.predictor)]);
}

void bind(py::module_& module) {
  py::class_<Maps, std::shared_ptr<Maps>>(module, "BoundedMaps")
      .def(py::init([](int element, int kind, double bound) {
             return std::make_shared<Maps>(dtype_of_number(element), kind_of(kind), bound);
           }),
           py::arg("element"), py::arg("kind"), py::arg("bound"))
      .def(py::init([](int element, int kind, double bound, int version) {
             return std::make_shared<Maps>(dtype_of_number(element), kind_of(kind), bound, version);
           }),
           py::arg("element"), py::arg("kind"), py::arg("bound"), py::arg("version"))
      .def_property_readonly(
          "key",
          [](const Maps& maps) {
            py::dict key;
            key["kind"] = static_cast<int>(maps.kind());
            key["bound"] = maps.bound();
            key["version"] = maps.version();
            return key;
          },
          "Arguments of the operators bounded_look, bounded_encode and bounded_decode.");
  py::class_<Arena>(module, "BoundedArena", py::buffer_protocol())
      .def(py::init([](size_t dims, size_t blocks, size_t bytes) {
             return std::make_unique<Arena>(Container::most_head(dims, blocks), bytes);
           }),
           py::arg("dims"), py::arg("blocks"), py::arg("bytes"))
      .def_property_readonly("block_bytes", &Arena::block_bytes)
      .def_buffer([](Arena& arena) {
        const std::span<std::byte> bytes = arena.bytes();
        return py::buffer_info(reinterpret_cast<uint8_t*>(bytes.data()),
                               static_cast<py::ssize_t>(bytes.size()));
      });
  py::class_<Encoder>(module, "BoundedEncoder", py::buffer_protocol())
      .def(py::init(
               [](const std::shared_ptr<Maps>& maps) { return std::make_unique<Encoder>(maps); }),
           py::arg("maps"))
      .def("encode", &encode, py::arg("x"), py::arg("first"), py::arg("n"),
           py::arg("shape") = py::none(), py::arg("at") = py::none())
      .def_buffer([](const Encoder& encoder) {
        const std::span<const std::byte> content = encoder.content();
        return py::buffer_info(reinterpret_cast<const uint8_t*>(content.data()),
                               static_cast<py::ssize_t>(content.size()));
      })
      .def("is_raw", &Encoder::is_raw, py::arg("frame_bytes"))
      .def("finish", &finish, py::arg("frame"), py::arg("arena"), py::arg("number"))
      .def_property_readonly("entropy", &Encoder::entropy)
      .def_property_readonly("packed", &Encoder::packed)
      .def_property_readonly("windowed", &Encoder::windowed)
      .def_property_readonly("again", &Encoder::again)
      .def_property_readonly("again_far", &Encoder::again_far)
      .def_property_readonly("value_bytes", &Encoder::value_bytes)
      .def("bytes_with", &Encoder::bytes_with, py::arg("frame_bytes"))
      .def(
          "rearranged",
          [](Encoder& encoder, int way, size_t most) {
            return view_of(encoder.rearranged(way_of(way), most));
          },
          py::arg("way"), py::arg("most") = SIZE_MAX)
      .def("finish_bytes", &finish_bytes, py::arg("way"), py::arg("frame"), py::arg("arena"),
           py::arg("number"))
      .def("use_windows", [](Encoder& encoder) {
        const WithoutGil no_gil;
        encoder.use_windows();
      });
  py::class_<Opened>(module, "BoundedBlock")
      .def_property_readonly("frame", [](const Opened& o) { return view_of(o.block.frame); })
      .def_property_readonly("content_bytes", [](const Opened& o) { return o.block.content; })
      .def_property_readonly("map", [](const Opened& o) { return name_of(o.block); })
      .def_property_readonly("predictor", [](const Opened& o) { return predictor_of(o.block); })
      .def_property_readonly("low_bits", [](const Opened& o) { return o.block.header.width; })
      .def_property_readonly("low_bits_coded",
                             [](const Opened& o) { return o.block.header.low == LowBits::kCoded; })
      .def_property_readonly("packed", [](const Opened& o) { return o.block.header.quads; })
      .def_property_readonly("windowed", [](const Opened& o) { return o.block.header.windowed; })
      .def_property_readonly("outliers", [](const Opened& o) { return o.block.header.outliers; })
      .def_property_readonly("specials", [](const Opened& o) { return o.block.header.specials; });
  py::class_<Decoder>(module, "BoundedDecoder")
      .def(py::init(
               [](const std::shared_ptr<Maps>& maps) { return std::make_unique<Decoder>(maps); }),
           py::arg("maps"))
      .def("open", &open_block, py::arg("block"), py::arg("n"))
      .def("decode", &decode, py::arg("block"), py::arg("content"), py::arg("low"), py::arg("high"),
           py::arg("y"), py::arg("first"));
  py::class_<Slab>(module, "BoundedSlab")
      .def(py::init([](const std::shared_ptr<Maps>& maps, size_t values) {
             return std::make_unique<Slab>(maps, values);
           }),
           py::arg("maps"), py::arg("values"))
      .def_property_readonly("blocks", &Slab::blocks)
      .def_property_readonly("look_bytes", &Slab::look_bytes)
      .def("field_places", &field_places, py::arg("encoder"), py::arg("block"), py::arg("shape"),
           py::arg("first"))
      .def("plan", &choose_form, py::arg("encoder"), py::arg("block"), py::arg("looked"),
           py::arg("values") = py::none(), py::arg("first") = 0, py::arg("count") = 0)
      .def("adopt", &adopt, py::arg("encoder"), py::arg("block"), py::arg("parts"))
      .def(
          "open",
          [](Slab& slab, size_t block, const Opened& opened, int64_t value, size_t from,
             size_t to) { slab.open(block, opened.block, value, from, to); },
          py::arg("block"), py::arg("opened"), py::arg("value"), py::arg("start"), py::arg("stop"))
      .def("fill", &fill, py::arg("block"), py::arg("opened"), py::arg("content"), py::arg("parts"))
      .def("lay_out", &Slab::lay_out)
      .def("forms", [](const Slab& slab) {
        const std::span<const std::byte> forms = slab.forms();
        return py::bytearray(reinterpret_cast<const char*>(forms.data()), forms.size());
      });
  module.def(
      "bounded_range",
      [](int element, const at::Tensor& x) {
        const DType dtype = dtype_of_number(element);
        const auto n = static_cast<size_t>(x.numel());
        const std::byte* values = host_bytes("x", x, size_of(dtype), 0, n);
        const py::gil_scoped_release no_gil;
        return finite_range(dtype, values, n);
      },
      py::arg("element"), py::arg("x"));
  module.def("bounded_read", &read_container, py::arg("payload"));
  module.def("bounded_write", &write_container, py::arg("element"), py::arg("complex"),
             py::arg("kind"), py::arg("asked"), py::arg("bound"), py::arg("shape"),
             py::arg("arena"));
  module.def(
      "prefer_large_pages",
      [](const at::Tensor& memory) {
        const auto each = static_cast<size_t>(memory.itemsize());
        const auto n = static_cast<size_t>(memory.numel());
        prefer_large_pages(host_bytes("memory", memory, each, 0, n), memory.nbytes());
      },
      py::arg("memory"));
  bind_whole(module);
  module.attr("BOUNDED_BLOCK_VALUES") = kBlockValues;
}

}  // namespace
}  // namespace bounded

void bind_bounded(py::module_& module) { bounded::bind(module); }

}  // namespace cgx
