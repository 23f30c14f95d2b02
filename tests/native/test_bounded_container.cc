// Headers and tables of payloads of the error-bounded compressor: what does not follow the format is
// refused by name.
#include <algorithm>
#include <functional>

#include "bounded_values.h"
#include "codec/bounded/bytes.h"
#include "codec/bounded/container.h"

namespace cgx::native {
namespace {

using bounded::Container;
using bounded::OpenContainer;
using bounded::PayloadError;

template <typename T>
Block altered(Block bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

Block small_container(Container* header, int version) {
  header->element = DType::kFloat64;
  header->kind = BoundKind::kAbsolute;
  header->asked = header->bound = 0.5;
  header->shape = {3, 5};
  header->version = version;
  const Block block(2, std::byte{7});
  const std::span<const std::byte> blocks[] = {block};
  Block payload = header->write(blocks);
  payload.insert(payload.end(), block.begin(), block.end());
  return payload;
}

// The checksum of a payload with one block of two bytes, which it covers, put in its place.
Block with_checksum(Block payload) {
  Block covered(payload.begin(), payload.begin() + 8);
  covered.insert(covered.end(), payload.begin() + 12, payload.end());
  return altered(std::move(payload), 8, crc32c(covered.data(), covered.size()));
}

std::string container_error(const Block& payload) {
  const ExactBytes exact(payload, 1);
  return error_of<PayloadError>([&] { OpenContainer::read(exact.span()); });
}

using Refuses = std::function<void(size_t at, const Block& bytes, const char* name)>;

template <typename T>
Block bytes_of(T value) {
  Block bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

Block numbers(std::initializer_list<uint64_t> values) {
  Block bytes;
  for (const uint64_t value : values) bounded::append_number(bytes, value);
  return bytes;
}

// What all versions refuse. `asked`: where the bound is that was asked for.
void check_first_fields(const Refuses& refuses, size_t asked) {
  refuses(0, bytes_of('X'), "none of torch_cgx.bounded");
  refuses(4, bytes_of(uint8_t{4}), "version 4 of the format, this reader knows 1 to 3");
  refuses(4, bytes_of(uint8_t{0}), "version 0");
  for (const int type : {0, 14, 64, 68, 69, 77, 128, 255}) {
    refuses(5, bytes_of(static_cast<uint8_t>(type)), "type");
  }
  refuses(6, bytes_of(uint8_t{4}), "kind of bound");
  for (const double bound : {-0.5, -0.0, double{NAN}, double{INFINITY}}) {
    refuses(asked, bytes_of(bound), "requested bound is");
  }
  refuses(7, bytes_of(uint8_t{65}), "65 dimensions");
}

// A payload without its last bytes, with others, or with a bit of any that is another.
void check_all_bytes(const Block& payload) {
  CHECK(with_checksum(payload) == payload);
  for (size_t size = 0; size < payload.size(); ++size) {
    const std::string text =
        container_error({payload.begin(), payload.begin() + static_cast<long>(size)});
    CHECK(contains(text, "cut"), size, ": ", text);
  }
  Block longer = payload;
  longer.push_back(std::byte{0});
  CHECK(contains(container_error(longer), "goes on after its end"));
  for (size_t i = 0; i < payload.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      container_error(altered(payload, i, payload[i] ^ static_cast<std::byte>(1 << bit)));
    }
  }
}

// With other bytes at a place, and a checksum that is right.
Refuses refuses_of(const Block& payload) {
  return [&payload](size_t at, const Block& bytes, const char* name) {
    Block other = payload;
    std::copy(bytes.begin(), bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(at));
    const std::string text = container_error(with_checksum(other));
    CHECK(contains(text, name), "byte ", at, ": ", text);
  };
}

}  // namespace

TEST(bounded_containers_of_versions_1_and_2) {
  for (const int version : {1, 2}) {
    Container header;
    const Block payload = small_container(&header, version);
    const OpenContainer open = OpenContainer::read(payload);
    CHECK(open.places.size() == 1 && open.places[0].begin == payload.size() - 2);
    CHECK(open.places[0].end == payload.size());
    CHECK(open.header.shape == header.shape && open.header.version == version);
    check_all_bytes(payload);
    const Refuses refuses = refuses_of(payload);
    check_first_fields(refuses, 16);
    refuses(16, bytes_of(0.25), "the payload's bound is 0.5, but 0.25 was requested");
    refuses(24, bytes_of(0.25), "the payload's bound is 0.25, but 0.5 was requested");
    refuses(12, bytes_of(uint32_t{17}), "2^17");
    refuses(36, bytes_of(uint32_t{1} << 20), "table of");  // a long dimension
    refuses(32, bytes_of(UINT64_MAX), "more values");
    refuses(32, bytes_of(uint64_t{1} << 62), "more values");
    refuses(32, bytes_of(uint64_t{INT64_MAX} / 80 + 1), "more values");
    refuses(48, bytes_of(uint32_t{1}), "goes on after its end");
    refuses(48, bytes_of(UINT32_MAX), "is cut");
  }
}

TEST(bounded_containers) {
  Container header;
  const Block payload = small_container(&header, 3);
  CHECK(payload.size() == 12 + 8 + 2 + 1 + 2);
  const OpenContainer open = OpenContainer::read(payload);
  CHECK(open.places.size() == 1 && open.places[0].begin == 23 && open.places[0].end == 25);
  CHECK(open.header.shape == header.shape && open.header.values() == 15);
  check_all_bytes(payload);
  const Refuses refuses = refuses_of(payload);
  check_first_fields(refuses, 12);
  refuses(22, numbers({2}), "goes on after its end");
  refuses(22, numbers({4}), "is cut");
  refuses(22, numbers({0, 0}), "0 blocks are as the one before, allowed: 1 to 1");
  refuses(22, numbers({0, 2}), "2 blocks are as the one before, allowed: 1 to 1");
  refuses(22, numbers({0, 1}), "goes on after its end");
  // The same with a longer shape, or table: what follows the bounds.
  const auto with_rest = [&](const Block& rest) {
    Block other(payload.begin(), payload.begin() + 20);
    other.insert(other.end(), rest.begin(), rest.end());
    return container_error(with_checksum(other));
  };
  for (const uint64_t dim : {uint64_t{1} << 62, UINT64_MAX, uint64_t{INT64_MAX} / 80 + 1}) {
    CHECK(contains(with_rest(numbers({dim, 5, 3, 0})), "more values"));
  }
  const std::string packed = with_rest(numbers({uint64_t{1} << 30, 5, 3, 0}));
  CHECK(contains(packed, "its shape needs"), packed);
  const std::string large = with_rest(numbers({3, 5, uint64_t{UINT32_MAX} + 1}));
  CHECK(contains(large, "a block of 4294967295 bytes"), large);
  CHECK(contains(with_rest(Block(12, std::byte{255})), "more than 64 bits"));
}

// Runs of blocks that are as the one before, and zeros at the end of a payload.
TEST(bounded_containers_of_equal_blocks) {
  Container header;
  header.element = DType::kFloat64;
  const Block one(6, std::byte{1}), two(7, std::byte{2}), none;
  const std::vector<const Block*> lists[] = {
      {&none, &one, &one, &two}, {&one, &none, &none, &one}, {&none, &none},
      {&two, &two, &two},        {&one, &two, &one, &two},
  };
  for (const auto& list : lists) {
    std::vector<std::span<const std::byte>> blocks;
    for (const Block* block : list) blocks.push_back(*block);
    header.shape = {list.size() * bounded::kBlockValues - 5};
    Block payload = header.write(blocks);
    for (size_t k = 0; k < list.size(); ++k) {
      if (k > 0 && list[k] == list[k - 1]) continue;
      payload.insert(payload.end(), list[k]->begin(), list[k]->end());
    }
    const size_t padding = header.padding(payload.size());
    CHECK(payload.size() + padding >= 4 * list.size());
    payload.resize(payload.size() + padding);
    const OpenContainer open = OpenContainer::read(payload);
    CHECK(open.places.size() == list.size());
    for (size_t k = 0; k < list.size(); ++k) {
      const auto [begin, end] = open.places[k];
      const auto at = payload.begin() + static_cast<std::ptrdiff_t>(begin);
      CHECK(Block(at, payload.begin() + static_cast<std::ptrdiff_t>(end)) == *list[k], k);
    }
    payload.push_back(std::byte{0});
    CHECK(contains(container_error(payload), "goes on after its end"));
  }
  header.shape = {uint64_t{1} << 24};
  const std::vector<std::span<const std::byte>> many(256, none);
  Block payload = header.write(many);
  const size_t bare = payload.size();
  CHECK(header.padding(bare) == 1024 - bare);
  for (size_t size = bare; size < 1024; ++size) {
    payload.resize(size);
    CHECK(contains(container_error(payload), "its shape needs"));
  }
  payload.resize(1024);
  CHECK(OpenContainer::read(payload).places.size() == 256);
  payload.back() = std::byte{1};
  CHECK(contains(container_error(payload), "goes on after its end"));
}

TEST(bounded_blocks_keep_their_places) {
  const Container header{DType::kUInt8, false, BoundKind::kLossless, 0, 0, {3 * 65536}};
  Block one(6, std::byte{1}), two(6, std::byte{2});
  const auto payload = [&](const Block& a, const Block& b, const Block& c) {
    const std::span<const std::byte> blocks[] = {a, b, c};
    return header.write(blocks);
  };
  const auto with_blocks = [](Block payload, std::initializer_list<Block> blocks) {
    for (const Block& block : blocks) payload.insert(payload.end(), block.begin(), block.end());
    return payload;
  };
  seal(one);
  seal(two);
  const Block head = payload(one, {}, two);
  OpenContainer::read(with_blocks(head, {one, two}));
  CHECK(contains(container_error(with_blocks(head, {two, one})), "blocks exchanged"));
  CHECK(contains(container_error(with_blocks(head, {one, one})), "blocks exchanged"));
}

TEST(bounded_shapes_of_containers) {
  const auto read = [](std::vector<uint64_t> shape, bool complex, size_t blocks) {
    Container header;
    header.complex = complex;
    header.shape = std::move(shape);
    const std::vector<std::span<const std::byte>> none(blocks);
    Block payload = header.write(none);
    payload.resize(payload.size() + header.padding(payload.size()));
    return OpenContainer::read(payload);
  };
  CHECK(read({}, false, 1).header.values() == 1);
  CHECK(read({}, true, 1).header.values() == 2);
  CHECK(read(std::vector<uint64_t>(64, 1), false, 1).header.values() == 1);
  CHECK(read({65536}, false, 1).places.size() == 1 && read({65537}, false, 2).places.size() == 2);
  CHECK(read({32769}, true, 2).header.values_of(1) == 2);
  CHECK(read({0, uint64_t{1} << 62}, false, 0).header.blocks() == 0);
  // Strides of an empty tensor must fit, too: no tensor has this shape.
  for (const bool complex : {false, true}) {
    error_of<PayloadError>([&] { read({uint64_t{1} << 32, 0, uint64_t{1} << 32}, complex, 0); });
  }
}

}  // namespace cgx::native
