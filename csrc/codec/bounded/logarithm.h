// Logarithms for estimates of size, by operations that IEEE defines to the last bit: libraries'
// logarithms differ, and so would the payloads that are chosen by them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cgx::bounded {

/// log2 x of x > 0, to 1e-15.
double log2_of(double x);

/// The same to 1e-6, quickly.
double about_log2(double x);

/// c log2 c, to 1e-6 c; 0 for 0. Entropies are sums of these.
double weight_of(uint32_t count);

}  // namespace cgx::bounded
