// The vector operations of one level, and what is made of them for all families. Included by a file
// of foreach_level-inl.h inside the level's anonymous namespace, within which cgx::cpu is used.

#if defined(CGX_ON_AVX2)
#include "codec/ops/simd_avx2-inl.h"
#elif defined(CGX_ON_AVX512)
#include "codec/ops/simd_avx512-inl.h"
#elif defined(CGX_ON_NEON)
#include "codec/ops/simd_neon-inl.h"
#endif
// These need the vector operations.
#include "codec/ops/extremes-inl.h"
#include "codec/ops/nans-inl.h"
#include "codec/ops/random-inl.h"
// This needs the headers above.
#include "codec/ops/pack-inl.h"
