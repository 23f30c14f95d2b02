#include "oracle.h"

#include <algorithm>
#include <cmath>

#include "check.h"

namespace cgx::native {
namespace {

constexpr double kUnit = 0x1p-24;

/// Rounding of one value to a 16-bit type; nothing for float32.
double narrowing(double magnitude, DType dtype) {
  if (dtype == DType::kFloat16) return magnitude * 0x1p-11 + 0x1p-25;
  if (dtype == DType::kBFloat16) return magnitude * 0x1p-8 + 0x1p-134;
  return 0;
}

void narrow(Estimate& x, size_t first, size_t last, DType dtype) {
  for (size_t i = first; i < last; ++i) {
    x.error[i] += narrowing(std::abs(x.value[i]) + x.error[i], dtype);
  }
}

void encode_bucket(Estimate& x, size_t first, size_t last, const CodecConfig& config) {
  double low = x.value[first], high = low;
  for (size_t i = first; i < last; ++i) {
    low = std::min(low, x.value[i] - x.error[i]);
    high = std::max(high, x.value[i] + x.error[i]);
  }
  double step = (high - low) / ((1 << config.get("bits")) - 1);
  if (step < 0x1p-126) step = std::ceil(step * 0x1p149) * 0x1p-149;
  const double part = config.text("rounding") == "stochastic" ? 1 : 0.5;
  const double most = std::max(std::abs(low), std::abs(high));
  for (size_t i = first; i < last; ++i) x.error[i] += part * step + 12 * kUnit * most + 0x1p-148;
}

}  // namespace

Estimate encoded(Estimate x, const std::vector<Layer>& layers, DType dtype) {
  size_t offset = 0;
  for (const Layer& layer : layers) {
    const size_t end = offset + layer.count;
    const CodecConfig& config = layer.codec->config();
    if (layer.codec == raw_codec()) {
      narrow(x, offset, end, dtype);
    } else if (layer.codec->bits() == 16) {
      const DType wire = config.name() == "fp16" ? DType::kFloat16 : DType::kBFloat16;
      narrow(x, offset, end, dtype == DType::kFloat32 ? wire : dtype);
    } else {
      const auto bucket = static_cast<size_t>(config.get("bucket_size"));
      size_t first = offset;
      while (first < end && (end - first >= bucket || config.get("skip_incomplete_buckets") == 0)) {
        const size_t last = std::min(end, first + bucket);
        encode_bucket(x, first, last, config);
        first = last;
      }
      narrow(x, first, end, dtype);
    }
    offset = end;
  }
  return x;
}

Estimate summed(const std::vector<Estimate>& parts, double divisor) {
  Estimate sum = parts.front();
  const double k = static_cast<double>(parts.size()) * kUnit;
  for (size_t i = 0; i < sum.value.size(); ++i) {
    double value = 0, error = 0, magnitude = 0;
    for (const Estimate& part : parts) {
      value += part.value[i];
      error += part.error[i];
      magnitude += std::abs(part.value[i]) + part.error[i];
    }
    // The last term: this very sum is in float64.
    error += k / (1 - k) * magnitude + 0x1p-50 * magnitude;
    sum.value[i] = value / divisor;
    sum.error[i] = error / divisor;
    if (divisor != 1) sum.error[i] += kUnit * (std::abs(sum.value[i]) + sum.error[i]) + 0x1p-149;
  }
  return sum;
}

Estimate rounded(Estimate x, DType dtype) {
  narrow(x, 0, x.value.size(), dtype);
  return x;
}

Estimate expected_all_reduce(const std::vector<std::vector<float>>& inputs,
                             const std::vector<Layer>& layers, DType dtype, Algorithm algorithm,
                             const Topology& topology, bool intra_exact, bool average) {
  std::vector<Estimate> parts(inputs.begin(), inputs.end());
  const double divisor = average ? static_cast<double>(inputs.size()) : 1;
  if (parts.size() == 1) return parts.front();
  if (topology.two_levels()) {
    std::vector<Estimate> hosts;
    for (int host = 0; host < topology.host_count(); ++host) {
      std::vector<Estimate> inside;
      for (int rank : topology.host(host)) {
        const Estimate& part = parts[static_cast<size_t>(rank)];
        inside.push_back(intra_exact ? part : encoded(part, layers, dtype));
      }
      hosts.push_back(summed(inside));
    }
    parts = std::move(hosts);
  }
  if (algorithm == Algorithm::kRing) {
    // The order of a chunk's sum begins at its number; which chunk a value is in does not matter
    // here.
    Estimate worst = parts.front();
    worst.error.assign(worst.error.size(), 0);
    for (size_t start = 0; start < parts.size(); ++start) {
      Estimate partial = encoded(parts[start], layers, dtype);
      for (size_t k = 1; k < parts.size(); ++k) {
        const bool last = k + 1 == parts.size();
        const Estimate& own = parts[(start + k) % parts.size()];
        partial = encoded(summed({partial, own}, last ? divisor : 1), layers, dtype);
      }
      worst.value = partial.value;
      for (size_t i = 0; i < worst.error.size(); ++i) {
        worst.error[i] = std::max(worst.error[i], partial.error[i]);
      }
    }
    return rounded(worst, dtype);
  }
  for (Estimate& part : parts) part = encoded(part, layers, dtype);
  Estimate sum = summed(parts, divisor);
  if (algorithm == Algorithm::kScatterReduceAllGather) sum = encoded(sum, layers, dtype);
  return rounded(sum, dtype);
}

void check_inside(const std::vector<float>& result, const Estimate& expected) {
  CHECK(result.size() == expected.value.size());
  for (size_t i = 0; i < result.size(); ++i) {
    const double error = std::abs(result[i] - expected.value[i]);
    CHECK(error <= expected.error[i], "value ", i, " is ", result[i], ", exact ", expected.value[i],
          " +- ", expected.error[i]);
  }
}

}  // namespace cgx::native
