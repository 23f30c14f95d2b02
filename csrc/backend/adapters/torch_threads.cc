#include "backend/adapters/torch_threads.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <dlfcn.h>

namespace cgx {
namespace {

class TorchThreads final : public Parallel {
 public:
  int threads() const override { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

  // at::parallel_for is a template that works only in code compiled for the OpenMP that torch was
  // built with; its loop over a tensor is compiled in torch. The tensor has an element a part, and
  // is made past the dispatcher: a TorchDispatchMode of the caller must not get hold of it.
  void run(size_t parts, const std::function<void(size_t)>& body) const override {
    const at::Tensor numbers = at::detail::empty_cpu({static_cast<int64_t>(parts)}, at::kByte);
    const char* first = static_cast<const char*>(numbers.const_data_ptr());
    at::TensorIterator loop =
        at::TensorIteratorConfig().check_all_same_dtype(false).add_input(numbers).build();
    loop.for_each(
        [&](char** data, const int64_t* strides, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            body(static_cast<size_t>(data[0] + i * strides[0] - first));
          }
        },
        /*grain_size=*/1);
  }
};

}  // namespace

std::unique_ptr<const Parallel> torch_threads() { return std::make_unique<TorchThreads>(); }

int intra_op_threads() { return at::get_num_threads(); }

void set_intra_op_threads(int count) {
  if (at::get_num_threads() == count) return;
  // torch's own also changes what threads get that are yet to come, which is the program's affair.
  using Set = void (*)(int);
  static const auto set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(count);
  if (at::get_num_threads() != count) at::set_num_threads(count);  // another OpenMP, or none
}

}  // namespace cgx
