// The list of element types, and the numbers that travel or are stored.
#include <set>
#include <string>

#include "base/dtype.h"
#include "base/dtype_set.h"
#include "check.h"
#include "codec/bounded/element.h"

namespace cgx::native {

TEST(dtype_numbers_on_the_wire_stay) {
  CHECK(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kFloat16) == 1 &&
        static_cast<int>(DType::kBFloat16) == 2);
}

TEST(dtype_numbers_in_payloads_of_bounded_stay) {
  const char* const names[] = {"float32", "float64", "float16", "bfloat16", "uint8",
                               "int8",    "int16",   "uint16",  "int32",    "uint32",
                               "int64",   "uint64",  "bool"};
  CHECK(bounded::kLastElement == 13);
  for (int number = 1; number <= 13; ++number) {
    const DType dtype = bounded::element_of(number);
    CHECK(std::string(name_of(dtype)) == names[number - 1], number);
    CHECK(bounded::number_of(dtype) == number, number);
  }
  for (const DType dtype : {DType::kComplex64, DType::kFloat8E5M2, DType::kFloat4E2M1FNX2}) {
    CHECK(bounded::number_of(dtype) == 0, name_of(dtype));
  }
}

TEST(dtype_facts) {
  std::set<std::string> names;
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    CHECK(names.insert(name_of(dtype)).second && size_of(dtype) > 0, number);
    const bool complex = kind_of(dtype) == DTypeKind::kComplex;
    CHECK((real_of(dtype) != dtype) == complex, name_of(dtype));
    CHECK(!complex || 2 * size_of(real_of(dtype)) == size_of(dtype), name_of(dtype));
  }
  CHECK(std::string(name_of(DType::kFloat4E2M1FNX2)) == "float4_e2m1fn_x2");
  CHECK(std::string(name_of(static_cast<DType>(kDTypeCount))) == "unknown");
}

TEST(dtype_sets_name_what_they_allow) {
  check_dtype("x", DType::kBFloat16, kComputed);
  const std::string text =
      error_of<ConfigError>([] { check_dtype("x", DType::kInt64, kComputed); });
  CHECK(text == "x is torch.int64, allowed: float32, float16, bfloat16", text);
  CHECK(!kComputed.has(static_cast<DType>(200)) && DTypeSet{}.text() == "none");
}

}  // namespace cgx::native
