#include "tensors/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace cgx::operators {
namespace {

using c10::SymInt;
using Type = std::optional<at::ScalarType>;
using View = std::string_view;

template <typename Signature>
c10::TypedOperatorHandle<Signature> found(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

using OfValues = at::Tensor(const at::Tensor&, View, SymInt, SymInt, SymInt, SymInt);
using OfValuesOut = void(const at::Tensor&, View, SymInt, SymInt, SymInt, SymInt,
                         const at::Tensor&);
using OfPayloadOut = void(const at::Tensor&, View, Type, const at::Tensor&);

}  // namespace

at::Tensor encode(const at::Tensor& tensor, View codec, const Key& key) {
  static const auto op = found<OfValues>("torch_cgx::encode");
  return op.call(tensor, codec, key.step, key.number, key.rank, key.index);
}

void encode_out(const at::Tensor& tensor, View codec, const Key& key, const at::Tensor& out) {
  static const auto op = found<OfValuesOut>("torch_cgx::encode", "out");
  op.call(tensor, codec, key.step, key.number, key.rank, key.index, out);
}

at::Tensor decode(const at::Tensor& payload, View codec, const SymInt& numel,
                  at::ScalarType dtype) {
  static const auto op =
      found<at::Tensor(const at::Tensor&, View, SymInt, at::ScalarType)>("torch_cgx::decode");
  return op.call(payload, codec, numel, dtype);
}

void decode_out(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  static const auto op = found<OfPayloadOut>("torch_cgx::decode", "out");
  op.call(payload, codec, dtype, out);
}

void decode_add(const at::Tensor& payload, View codec, Type dtype, const at::Tensor& out) {
  static const auto op = found<OfPayloadOut>("torch_cgx::decode_add");
  op.call(payload, codec, dtype, out);
}

at::Tensor roundtrip(const at::Tensor& tensor, View codec, const Key& key) {
  static const auto op = found<OfValues>("torch_cgx::roundtrip");
  return op.call(tensor, codec, key.step, key.number, key.rank, key.index);
}

void roundtrip_out(const at::Tensor& tensor, View codec, const Key& key, const at::Tensor& out) {
  static const auto op = found<OfValuesOut>("torch_cgx::roundtrip", "out");
  op.call(tensor, codec, key.step, key.number, key.rank, key.index, out);
}

}  // namespace cgx::operators
