// Classes of lengths: they allow posting a receive before the length of its message is confirmed.
#pragma once

#include <bit>
#include <cstddef>

namespace cgx::relay {

/// Tags below kClassTags belong to no class.
inline constexpr int kFirstTag = 0;   // the first frame of an announced message
inline constexpr int kRestTag = 1;    // where there are no classes: the rest of it
inline constexpr int kAgreedTag = 2;  // where there are no classes: a message not announced
inline constexpr int kClassTags = 16;

struct LengthClass {
  int tag = 0;
  size_t room = 0;  // the longest message of the class
};

/// The class of a length from 1 on: lengths are rounded up to 9 to 16 times a power of two, by less
/// than an eighth. Sender and receiver each take the tag from the length that they expect, so a
/// message is never received with less room than it needs: different classes have different tags.
inline LengthClass length_class(size_t bytes) {
  const int width = std::bit_width(bytes - 1);
  const int shift = width > 4 ? width - 4 : 0;
  const size_t steps = ((bytes - 1) >> shift) + 1;
  return {kClassTags + 16 * shift + static_cast<int>(steps), steps << shift};
}

/// More than the largest tag of any class.
inline constexpr int kTags = kClassTags + 16 * 62;

/// The class of a direct transfer: lanes have tags of their own, behind those above.
inline LengthClass direct_class(size_t bytes, int lane) {
  LengthClass found = length_class(bytes);
  found.tag += kTags * (1 + lane);
  return found;
}

}  // namespace cgx::relay
