// libFuzzer's entry; -DCGX_FUZZ_TARGET=fuzz_decode says which target the program is for.
#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cgx::native::CGX_FUZZ_TARGET(data, size);
  return 0;
}
