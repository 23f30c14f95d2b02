// The operators of the namespace torch_cgx (library.cc has their schemas), as C++ calls them: through
// torch's dispatcher, so that autograd, FakeTensorMode, functorch and the like see every call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <string_view>

namespace cgx::operators {

/// The key of random numbers (ElementKey of codecs.h), as schemas have it.
struct Key {
  c10::SymInt step = 0, number = 0, rank = 0, index = 0;
};

at::Tensor encode(const at::Tensor& tensor, std::string_view codec, const Key& key);
void encode_out(const at::Tensor& tensor, std::string_view codec, const Key& key,
                const at::Tensor& out);
at::Tensor decode(const at::Tensor& payload, std::string_view codec, const c10::SymInt& numel,
                  at::ScalarType dtype);
void decode_out(const at::Tensor& payload, std::string_view codec,
                std::optional<at::ScalarType> dtype, const at::Tensor& out);
void decode_add(const at::Tensor& payload, std::string_view codec,
                std::optional<at::ScalarType> dtype, const at::Tensor& out);
at::Tensor roundtrip(const at::Tensor& tensor, std::string_view codec, const Key& key);
void roundtrip_out(const at::Tensor& tensor, std::string_view codec, const Key& key,
                   const at::Tensor& out);

}  // namespace cgx::operators
