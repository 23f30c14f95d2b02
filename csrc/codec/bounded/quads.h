// Symbols with little entropy, four to a byte. Huffman codes take a bit for each byte at least, so a
// coder of bytes needs several symbols in one to take less for a symbol.
//
// A symbol's code is its distance from `center`, folded (0, -1, 1, -2 ... are 0, 1, 2, 3 ...); 3 stands
// for all larger ones, and then the symbol itself is in a list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cgx::bounded {

/// Bytes of n codes.
constexpr size_t quad_bytes(size_t n) { return (n + 3) / 4; }

/// The symbol that occurs most often; the least of several.
uint8_t center_of(const uint8_t* symbols, size_t n);

/// Writes quad_bytes(n) bytes, and appends the symbols of the list to `others`.
void pack_quads(const uint8_t* symbols, size_t n, uint8_t center, uint8_t* quads,
                std::vector<uint8_t>& others);

/// The inverse; false: the list has not as many symbols as the codes say, or a code behind the last
/// value is not 0. `symbols` has room for 4 quad_bytes(n).
bool unpack_quads(const uint8_t* quads, size_t n, uint8_t center, const uint8_t* others,
                  size_t count, uint8_t* symbols);

}  // namespace cgx::bounded
