// Configurations to test a declaration with: each parameter at some of its values, and some at random.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/parameter.h"
#include "codec/declaration.h"
#include "data.h"

namespace cgx::native {

inline constexpr int64_t kShortRange = 16;
inline constexpr int kRandomConfigs =
    12;  // of each declaration, beside those that change one parameter

/// Numbers, as number_of() has them, that a parameter is tried with.
inline std::vector<int64_t> samples(const Parameter& p) {
  std::vector<int64_t> some;
  if (p.kind == Parameter::Kind::kInteger) {
    for (int64_t n = p.low; n <= p.high && n < p.low + kShortRange; ++n) {
      if (p.takes(n)) some.push_back(n);
    }
    if (some.back() == p.high) return some;
    some = {p.low};
    for (int64_t n : {3, 8, 33, 64, 100, 512, 1000, 1024, 2048}) {
      if (n > p.low && n < p.high && p.takes(n)) some.push_back(n);
    }
    some.push_back(p.high);
  } else if (p.kind == Parameter::Kind::kReal) {
    for (double x : {p.least, 0x1p-140, 1e-6, 0.3, 0.5, 1.0, 3.0, 1e4, 1e30, p.greatest}) {
      if (p.takes_real(x)) some.push_back(number_of(p, shortest_text(x)));
    }
  } else {
    const int64_t n =
        p.kind == Parameter::Kind::kChoice ? static_cast<int64_t>(split(p.choices).size()) : 2;
    for (int64_t i = 0; i < n; ++i) some.push_back(i);
  }
  return some;
}

/// The defaults, each parameter at each of its samples, and some at random; each once, and only those
/// for which `is_allowed` says that their parameters go together.
template <typename Family, typename IsAllowed>
std::vector<ConfigOf<Family>> sample_configs(const Family& family, uint64_t seed,
                                             const IsAllowed& is_allowed) {
  std::vector<ConfigOf<Family>> all = {ConfigOf<Family>(family)};
  const auto add = [&](const ConfigOf<Family>& config) {
    const bool known = std::find(all.begin(), all.end(), config) != all.end();
    if (!known && is_allowed(config)) all.push_back(config);
  };
  Random random(seed);
  for (const Parameter& p : family.parameters) {
    for (int64_t number : samples(p)) {
      ConfigOf<Family> config(family);
      config.set(p.name, text_of(p, number));
      add(config);
    }
  }
  for (int i = 0; i < kRandomConfigs && !family.parameters.empty(); ++i) {
    ConfigOf<Family> config(family);
    for (const Parameter& p : family.parameters) {
      const auto some = samples(p);
      config.set(p.name, text_of(p, some[random(some.size())]));
    }
    add(config);
  }
  return all;
}

}  // namespace cgx::native
