#include "backend/config/notices.h"

#include "base/error.h"

namespace cgx {
namespace {

constexpr size_t kSmallValues = 1024;
constexpr size_t kLargeBytes = 64 << 10;
constexpr int kManyCalls = 10;

std::atomic<bool> small_told{false}, exact_told{false}, somebody_chose{false};

}  // namespace

void Notices::explicit_call(size_t bytes) {
  if (bytes >= kLargeBytes) somebody_chose = true;
}

std::string Notices::reduction(const char* what, size_t values, size_t bytes, bool compressed) {
  if (compressed) {
    explicit_call(bytes);
    if (values >= kSmallValues || small_told || is_given(options_, "min_size") ||
        small_told.exchange(true)) {
      return "";
    }
    return str_of(
        "cgx: ", what, " of ", values, " values is compressed to ", bits_in_force(options_),
        " bits, as all of this group are, metrics included (the option bits, or ",
        setting("bits").variable, "). To keep small ones exact, set ", setting("min_size").variable,
        " to a number of values; to compress gradients alone, give the bits to CGXState instead");
  }
  if (somebody_chose || !speaks_ || bytes < kLargeBytes || is_given(options_, "bits")) return "";
  if (++exact_ < kManyCalls || exact_told.exchange(true)) return "";
  return str_of("cgx: nothing is compressed: ", kManyCalls, " reductions of ", kLargeBytes >> 10,
                " KiB and more were exact, since neither a hook nor the group says how many bits ",
                "to send. Register cgx_utils.cgx_hook with the DistributedDataParallel model (a ",
                "trainer may not have done so), or set the bits of the group; 32 keeps values ",
                "exact without this warning");
}

std::string Notices::group_wide(size_t values, const Codec& codec, bool tuned) {
  if (!speaks_ || values < kSmallValues || group_wide_told_.exchange(true)) return "";
  const std::string source = options_.get("bits")
                                 ? "the option bits"
                                 : str_of(setting("bits").variable, "=", bits_in_force(options_));
  return str_of("the group compresses its reductions, biases and norms included: ",
                codec.describe(), " (", source, ")", tuned ? "; the tuner may send more bits" : "",
                "; CGXState keeps small layers exact");
}

}  // namespace cgx
