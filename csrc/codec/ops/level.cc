#include "codec/ops/level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <vector>

#include "base/error.h"
#include "codec/ops/kernels.h"

namespace cgx {
namespace {

using cpu::Kernels;

#if defined(__x86_64__)
// Some compilers' __builtin_cpu_supports does not accept the name f16c.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

// Worst first.
const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> levels = [] {
    std::vector<const Kernels*> found{&cpu::scalar_kernels()};
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
      found.push_back(&cpu::avx2_kernels());
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        found.push_back(&cpu::avx512_kernels());
      }
    }
#elif defined(__aarch64__)
    found.push_back(&cpu::neon_kernels());
#endif
    return found;
  }();
  return levels;
}

const Kernels& find(const std::string& canonical_name) {
  for (const Kernels* level : available()) {
    if (canonical_name == level->name) return *level;
  }
  throw Error("no SIMD level is called " + canonical_name);
}

const Kernels& default_level() {
  const auto pinned = from_environment(cpu_level_variable());
  return pinned ? find(*pinned) : *available().back();
}

std::atomic<const Kernels*> in_force{nullptr};

}  // namespace

const cpu::Kernels& cpu::kernels() {
  const Kernels* level = in_force.load(std::memory_order_acquire);
  if (level == nullptr) {
    const Kernels* chosen = &default_level();
    // A level that was set meanwhile stays.
    if (in_force.compare_exchange_strong(level, chosen, std::memory_order_acq_rel)) level = chosen;
  }
  return *level;
}

const Parameter& cpu_level_variable() {
  static const auto* variable =
      new Parameter{.name = "cpu_level",
                    .variable = "CGX_CPU_LEVEL",
                    .kind = Parameter::Kind::kChoice,
                    .fallback = available().back()->name,
                    .choices = cpu_levels(),
                    .meaning = "SIMD level of the codecs; by default the best that the CPU has"};
  return *variable;
}

std::string cpu_level() { return cpu::kernels().name; }

std::string default_cpu_level() { return default_level().name; }

void set_cpu_level(const std::string& name) {
  const Kernels& level =
      name.empty() ? default_level() : find(canonical(cpu_level_variable(), "cpu level", name));
  in_force.store(&level, std::memory_order_release);
}

std::string cpu_levels() {
  std::string names;
  for (const Kernels* level : available()) {
    if (!names.empty()) names += ",";
    names += level->name;
  }
  return names;
}

}  // namespace cgx
