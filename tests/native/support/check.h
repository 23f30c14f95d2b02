// The few macros of the native tests: they need neither torch nor a test library, so that the core
// can be built with any sanitizer.
//
//     TEST(a_name) { CHECK(x == y, "x is ", x); }
//
// A failed CHECK is an exception, in any thread that run_ranks() of groups.h started.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"

namespace cgx::native {

class CheckFailed : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Test {
  const char* name;
  void (*body)();
};

/// All tests of the program, in the order of the linked files.
std::vector<Test>& tests();

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

/// Runs `body`, which must throw an E; returns the text of it.
template <typename E, typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    throw CheckFailed(str_of("another kind of error than expected: ", error.what()));
  }
  throw CheckFailed("no error was thrown");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace cgx::native

#define TEST(name)                                                                  \
  static void test_##name();                                                        \
  static const ::cgx::native::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition, ...)                                                                      \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      throw ::cgx::native::CheckFailed(                                                            \
          ::cgx::str_of(__FILE__, ":", __LINE__, ": " #condition " " __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                              \
  } while (false)
