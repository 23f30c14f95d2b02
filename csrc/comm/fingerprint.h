// What ranks say of the collectives that they begin, so that programs which drifted apart are found
// before anything is sent.
#pragma once

#include <cstdint>

namespace cgx {

/// The words are the caller's; ranks that run the same collective say the same. Numbers count the
/// collectives of a group from 1.
struct Fingerprint {
  uint64_t number = 0;
  uint64_t words[2] = {0, 0};
  bool operator==(const Fingerprint&) const = default;
};

/// What a peer said of the same number.
struct PeerFingerprint {
  int rank = 0;
  Fingerprint note;
};

}  // namespace cgx
