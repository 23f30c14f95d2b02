// A small key-value store through which the ranks of a new group find each other. backend/
// implements it over c10d::Store; tests use a dictionary.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"

namespace cgx {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Keys are private to one group.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key; after the deadline TimeoutError names it.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
  /// The values of several keys, when all are there; TimeoutError names a key that is not.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys,
                                           const Deadline& deadline) {
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(get(key, deadline));
    return values;
  }
};

}  // namespace cgx
