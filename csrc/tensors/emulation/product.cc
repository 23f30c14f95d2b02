#include "tensors/emulation/product.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <vector>

#include "codec/gemm/product.h"
#include "tensors/checks.h"
#include "tensors/emulation/casts.h"
#include "tensors/results.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

using gemm::Matrix;
using gemm::Shape;

constexpr std::string_view kHopper = "hopper14";

struct ProductGuard {
  at::AutoDispatchBelowADInplaceOrView autograd;
  SafeAfterFork one_thread;
};

gemm::Sums sums_of_text(std::string_view accumulate, bool kahan, int64_t block) {
  TORCH_CHECK_VALUE(block >= 0, "block is ", block, ", allowed: 0 or more");
  if (accumulate == kHopper) {
    TORCH_CHECK_VALUE(!kahan && block == 0, "accumulate is ", kHopper,
                      ", allowed with it: kahan=False, block=0");
    return gemm::hopper_sums();
  }
  const auto cast = cast_of_text(accumulate);
  casting::on_gpu::Call call{};  // has the constants of casts of numbers by themselves
  const bool known = cast->elementwise() && !cast->stochastic() && cast->set_call(call) &&
                     call.work == casting::on_gpu::Work::kRound;
  const auto kind = static_cast<formats::Kind>(call.kind);
  TORCH_CHECK_VALUE(known && kind != formats::Kind::kScale, "accumulate is ", cast->describe(),
                    ", allowed: a format that has a zero, shares no scales and draws no random "
                    "numbers, or ",
                    kHopper);
  return gemm::sums_of(kind, call.narrow, kahan, static_cast<size_t>(block));
}

void check_operand(const char* what, const at::Tensor& tensor) {
  check_tensor(what, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kFloat, what, " is ", text_of(tensor.scalar_type()),
                   ", allowed: torch.float32");
  TORCH_CHECK_VALUE(tensor.dim() >= 2, what, " has ", tensor.dim(),
                    tensor.dim() == 1 ? " dimension" : " dimensions", ", allowed: 2 or more");
}

c10::IntArrayRef batch_of(const at::Tensor& tensor) {
  return tensor.sizes().slice(0, tensor.dim() - 2);
}

std::vector<int64_t> common_batch(const at::Tensor& a, const at::Tensor& b) {
  const c10::IntArrayRef x = batch_of(a), y = batch_of(b);
  const size_t n = std::min(x.size(), y.size());
  for (size_t i = 1; i <= n; ++i) {
    const int64_t p = x[x.size() - i], q = y[y.size() - i];
    TORCH_CHECK_VALUE(p == q || p == 1 || q == 1, "a has the batch dimensions ", x, " and b ", y,
                      ", allowed: those that broadcast");
  }
  return at::infer_size(x, y);
}

at::Tensor values_of(const at::Tensor& tensor) {
  return tensor.is_neg() || tensor._is_zerotensor() ? dense_values(tensor) : tensor;
}

/// Matrices of a tensor with so many dimensions before the last two.
class Matrices {
 public:
  explicit Matrices(const at::Tensor& tensor)
      : first_(const_cast<float*>(tensor.const_data_ptr<float>())),
        sizes_(batch_of(tensor).vec()),
        strides_(tensor.strides().slice(0, tensor.dim() - 2).vec()),
        row_(tensor.stride(-2)),
        column_(tensor.stride(-1)) {}

  Matrix<float> of(size_t number) const {
    float* values = first_;
    for (size_t d = sizes_.size(); d-- > 0;) {
      const auto size = static_cast<size_t>(sizes_[d]);
      values += static_cast<int64_t>(number % size) * strides_[d];
      number /= size;
    }
    return {values, row_, column_};
  }

 private:
  float* first_;
  std::vector<int64_t> sizes_, strides_;
  int64_t row_, column_;
};

Matrix<const float> read_only(const Matrix<float>& m) { return {m.values, m.row, m.column}; }

// Whether the loops, which take rows by kRows and columns by kLanes, have less to do for the columns of a
// and the rows of b instead: (a b)^T = b^T a^T, whose terms are the same.
bool is_tall(const Shape& shape) {
  const auto work = [](size_t rows, size_t columns) {
    return gemm::rounded_up(rows, gemm::kRows) * gemm::rounded_up(columns, gemm::kLanes);
  };
  return work(shape.columns, shape.rows) < work(shape.rows, shape.columns);
}

void multiply(const gemm::Sums& sums, const at::Tensor& a, const at::Tensor& b,
              const at::Tensor& y) {
  const Shape shape{static_cast<size_t>(a.size(-2)), static_cast<size_t>(a.size(-1)),
                    static_cast<size_t>(b.size(-1))};
  if (y.numel() == 0) return;
  if (is_tall(shape)) return multiply(sums, b.mT(), a.mT(), y.mT());
  const Matrices as(a), bs(b), ys(y);
  const size_t products = shape.rows * shape.depth * shape.columns;
  const size_t each = std::max<size_t>(products / shape.tiles(), 1);
  const size_t tiles = count_of(y) / (shape.rows * shape.columns) * shape.tiles();
  in_parts(tiles * each, each, [&](size_t first, size_t n) {
    gemm::Multiplier multiplier(sums, shape);
    const size_t last = (first + n) / each;
    for (size_t tile = first / each; tile < last;) {
      const size_t number = tile / shape.tiles(), inside = tile % shape.tiles();
      const size_t some = std::min(shape.tiles() - inside, last - tile);
      multiplier.run(read_only(as.of(number)), read_only(bs.of(number)), inside, some,
                     ys.of(number));
      tile += some;
    }
  });
}

std::vector<int64_t> with_matrix(std::vector<int64_t> batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

}  // namespace

at::Tensor product_tensor(const at::Tensor& a, const at::Tensor& b, std::string_view accumulate,
                          bool kahan, int64_t block) {
  const ProductGuard guard;
  check_operand("a", a);
  check_operand("b", b);
  check_device("b", b, "a", a);
  const int64_t rows = a.size(-2), depth = a.size(-1), columns = b.size(-1);
  TORCH_CHECK_VALUE(b.size(-2) == depth, "a has ", depth, " columns and b ", b.size(-2),
                    " rows, allowed: as many");
  const std::vector<int64_t> batch = common_batch(a, b);
  const gemm::Sums sums = sums_of_text(accumulate, kahan, block);
  const at::Tensor y = at::empty(with_matrix(batch, rows, columns), a.options());
  const c10::IntArrayRef of_b = batch_of(b);
  if (std::all_of(of_b.begin(), of_b.end(), [](int64_t n) { return n == 1; })) {
    // One matrix b for all rows.
    const int64_t all = c10::multiply_integers(batch) * rows;
    multiply(sums, values_of(a).reshape({all, depth}), values_of(b).reshape({depth, columns}),
             y.view({all, columns}));
    return y;
  }
  multiply(sums, values_of(a).expand(with_matrix(batch, rows, depth)),
           values_of(b).expand(with_matrix(batch, depth, columns)), y);
  return y;
}

}  // namespace cgx
