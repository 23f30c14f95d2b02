// The fuzzers' targets on the committed corpus (crashes of the past among it) and on random bytes.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "../fuzz/targets.h"
#include "check.h"
#include "data.h"

namespace cgx::native {
namespace {

struct Target {
  const char* name;
  void (*run)(const uint8_t*, size_t);
};
constexpr Target kTargets[] = {{"bdi", fuzz_bdi},       {"bounded", fuzz_bounded},
                               {"decode", fuzz_decode}, {"engine", fuzz_engine},
                               {"header", fuzz_header}, {"plan", fuzz_plan},
                               {"relay", fuzz_relay},   {"slots", fuzz_slots}};

}  // namespace

TEST(fuzz_corpus) {
  for (const Target& target : kTargets) {
    size_t files = 0;
    const auto folder = std::filesystem::path(CGX_FUZZ_CORPUS) / target.name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      try {
        target.run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      } catch (const std::exception& error) {
        throw CheckFailed(str_of(entry.path().string(), ": ", error.what()));
      }
      ++files;
    }
    CHECK(files > 0, folder.string(), " is empty");
  }
}

TEST(fuzz_random_inputs) {
  Random random(11);
  for (const Target& target : kTargets) {
    for (int i = 0; i < 200; ++i) {
      std::vector<uint8_t> bytes(random(400));
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      try {
        target.run(bytes.data(), bytes.size());
      } catch (const std::exception& error) {
        throw CheckFailed(str_of(target.name, ", input ", i, ": ", error.what()));
      }
    }
  }
}

}  // namespace cgx::native
