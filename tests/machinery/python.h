// What the bindings of the test module share.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/error.h"
#include "comm/rendezvous.h"

namespace cgx {

/// ConfigError for a negative number or a NaN.
inline Deadline deadline_of(double seconds) {
  if (!(seconds >= 0)) throw ConfigError(str_of("timeout is ", seconds, " s, allowed: 0 or more"));
  return Deadline::after(
      std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9)));
}

/// A rendezvous of two Python callables: set(key, value) and get(key, timeout_seconds) -> bytes,
/// which raises TimeoutError.
class PyRendezvous final : public Rendezvous {
 public:
  PyRendezvous(pybind11::function set, pybind11::function get)
      : set_(std::move(set)), get_(std::move(get)) {}

  void set(const std::string& key, const std::string& value) override {
    call(key, [&] { set_(key, pybind11::bytes(value)); });
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::string value;
    call(key, [&] {
      value = get_(key, std::chrono::duration<double>(deadline.left()).count()).cast<std::string>();
    });
    return value;
  }

 private:
  template <typename Step>
  static void call(const std::string& key, Step step) {
    pybind11::gil_scoped_acquire acquired;
    try {
      step();
    } catch (const pybind11::error_already_set& error) {
      const std::string text = str_of("key ", key, ": ", error.what());
      if (error.matches(PyExc_TimeoutError)) throw TimeoutError(text);
      throw Error(text);
    }
  }

  pybind11::function set_;
  pybind11::function get_;
};

}  // namespace cgx
