// What reductions of every type and op must give, one value at a time and by other means than the
// engine's: integers in 128 bits, floats of values whose results are exact in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data.h"
#include "reduce/plan/plan.h"

namespace cgx::native {

struct OpCase {
  DType dtype;
  Combine combine;
  bool average = false;
};

/// All that can be reduced: types, ops, averages.
const std::vector<OpCase>& op_cases();

/// n elements of rank `rank`: integers of any bits, floats so that every result is exact.
std::vector<std::byte> op_input(const OpCase& test, size_t n, uint64_t seed, size_t rank);

/// The result over ranks 0 .. ranks - 1.
std::vector<std::byte> op_result(const OpCase& test, size_t n, uint64_t seed, size_t ranks);

}  // namespace cgx::native
