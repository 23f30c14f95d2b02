// A small key-value store through which the ranks of a new group find each other. backend/
// implements it over c10d::Store; tests use a dictionary.
#pragma once

#include <string>

#include "base/deadline.h"

namespace cgx {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Keys are private to one group.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key; after the deadline TimeoutError names it.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
};

}  // namespace cgx
