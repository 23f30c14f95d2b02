#include "codec/ops/level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "codec/ops/by_level.h"

namespace cgx {
namespace {

using cpu::Level;

/// Names of the levels, by their numbers.
constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "neon"};
static_assert(std::size(kNames) == cpu::kLevels);

const char* name_of(Level level) { return kNames[static_cast<size_t>(level)]; }

#if defined(__x86_64__)
// Some compilers' __builtin_cpu_supports does not accept the name f16c.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// Worst first.
const std::vector<Level>& available() {
  static const std::vector<Level> levels = [] {
    std::vector<Level> found{Level::kScalar};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
      found.push_back(Level::kAvx2);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        found.push_back(Level::kAvx512);
      }
    }
#elif defined(__aarch64__)
    found.push_back(Level::kNeon);
#endif
    return found;
  }();
  return levels;
}

Level find(const std::string& canonical_name) {
  for (const Level level : available()) {
    if (canonical_name == name_of(level)) return level;
  }
  throw Error("no SIMD level is called " + canonical_name);
}

Level default_level() {
  const auto pinned = from_environment(cpu_level_variable());
  return pinned ? find(*pinned) : available().back();
}

constexpr int kNone = -1;
std::atomic<int> in_force{kNone};

}  // namespace

Level cpu::level_in_force() {
  int level = in_force.load(std::memory_order_acquire);
  if (level == kNone) {
    const int chosen = static_cast<int>(default_level());
    // A level that was set meanwhile stays.
    if (in_force.compare_exchange_strong(level, chosen, std::memory_order_acq_rel)) level = chosen;
  }
  return static_cast<Level>(level);
}

const Parameter& cpu_level_variable() {
  static const auto* variable =
      new Parameter{.name = "cpu_level",
                    .variable = "CGX_CPU_LEVEL",
                    .kind = Parameter::Kind::kChoice,
                    .fallback = name_of(available().back()),
                    .choices = cpu_levels(),
                    .meaning = "SIMD level of the codecs; by default the best that the CPU has"};
  return *variable;
}

std::string cpu_level() { return name_of(cpu::level_in_force()); }

std::string default_cpu_level() { return name_of(default_level()); }

void set_cpu_level(const std::string& name) {
  const Level level =
      name.empty() ? default_level() : find(canonical(cpu_level_variable(), "cpu level", name));
  in_force.store(static_cast<int>(level), std::memory_order_release);
}

std::string cpu_levels() {
  std::string names;
  for (const Level level : available()) {
    if (!names.empty()) names += ",";
    names += name_of(level);
  }
  return names;
}

}  // namespace cgx
