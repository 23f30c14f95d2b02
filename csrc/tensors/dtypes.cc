#include "tensors/dtypes.h"

namespace cgx {

std::optional<DType> dtype_of(at::ScalarType type) {
  using T = at::ScalarType;
  switch (type) {
    case T::Float:
      return DType::kFloat32;
    case T::Half:
      return DType::kFloat16;
    case T::BFloat16:
      return DType::kBFloat16;
    case T::Double:
      return DType::kFloat64;
    case T::Byte:
      return DType::kUInt8;
    case T::Char:
      return DType::kInt8;
    case T::Short:
      return DType::kInt16;
    case T::UInt16:
      return DType::kUInt16;
    case T::Int:
      return DType::kInt32;
    case T::UInt32:
      return DType::kUInt32;
    case T::Long:
      return DType::kInt64;
    case T::UInt64:
      return DType::kUInt64;
    case T::Bool:
      return DType::kBool;
    case T::ComplexHalf:
      return DType::kComplex32;
    case T::ComplexFloat:
      return DType::kComplex64;
    case T::ComplexDouble:
      return DType::kComplex128;
    case T::Float8_e4m3fn:
      return DType::kFloat8E4M3FN;
    case T::Float8_e4m3fnuz:
      return DType::kFloat8E4M3FNUZ;
    case T::Float8_e5m2:
      return DType::kFloat8E5M2;
    case T::Float8_e5m2fnuz:
      return DType::kFloat8E5M2FNUZ;
    case T::Float8_e8m0fnu:
      return DType::kFloat8E8M0FNU;
    case T::Float4_e2m1fn_x2:
      return DType::kFloat4E2M1FNX2;
    default:
      return std::nullopt;
  }
}

}  // namespace cgx
