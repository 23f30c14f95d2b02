// Fingerprints of collectives: ranks compare them when they begin one, so that programs which have
// drifted apart are found before anything is sent.
#pragma once

#include <cstdint>

namespace cgx {

/// The words are the caller's, and equal on ranks that run the same collective. Numbers count the
/// collectives of a group from 1.
struct Fingerprint {
  static constexpr int kWords = 3;

  uint64_t number = 0;
  uint64_t words[kWords] = {};
  bool operator==(const Fingerprint&) const = default;
};

/// The fingerprint that a peer published for the same number.
struct PeerFingerprint {
  int rank = 0;
  Fingerprint fingerprint;
};

}  // namespace cgx
