// Runs the tests whose names begin with one of the arguments; all without arguments. An argument -NAME
// leaves out the tests whose names begin with NAME.
//   --levels   prints the SIMD levels of this CPU instead
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "check.h"
#include "codec/ops/level.h"

namespace cgx::native {

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

namespace {

bool wanted(const Test& test, int argc, char** argv) {
  const std::string name = test.name;
  bool all = true, named = false;
  for (int i = 1; i < argc; ++i) {
    const char* argument = argv[i];
    if (argument[0] == '-') {
      if (name.rfind(argument + 1, 0) == 0) return false;
    } else {
      all = false;
      named = named || name.rfind(argument, 0) == 0;
    }
  }
  return all || named;
}

int run(int argc, char** argv) {
  int passed = 0, failed = 0;
  const auto begin = std::chrono::steady_clock::now();
  auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  for (const Test& test : tests()) {
    if (!wanted(test, argc, argv)) continue;
    const auto start = std::chrono::steady_clock::now();
    try {
      test.body();
      ++passed;
      if (seconds(start) > 5) std::printf("  %s: %.1f s\n", test.name, seconds(start));
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", test.name, error.what());
    }
    std::fflush(stdout);
  }
  std::printf("level %s: %d passed, %d failed in %.1f s\n", cpu_level().c_str(), passed, failed,
              seconds(begin));
  // A name that matches nothing is a mistake of whoever calls.
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace cgx::native

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--levels") == 0) {
    std::printf("%s\n", cgx::cpu_levels().c_str());
    return 0;
  }
  return cgx::native::run(argc, argv);
}
