// How the ranks of a new group find each other: a small key-value store that all of them reach.
// backend/ implements it over c10d::Store; tests over a dictionary.
#pragma once

#include <string>

#include "base/deadline.h"

namespace cgx {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Keys are private to one group.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until the key is there; TimeoutError that names the key after the deadline.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
};

}  // namespace cgx
