// The families that have kernels for GPUs, by the structs that codec/gpu/families.h describes.
#pragma once

#include "codec/families/block/gpu/tiles.h"
#include "codec/families/float/gpu/tiles.h"
#include "codec/families/maxmin/gpu/tiles.h"
#include "codec/families/maxmin/gpu/warps.h"
#include "codec/families/rotated/gpu/quantizer.h"
#include "codec/families/rotated/gpu/warp_quantizer.h"
#include "codec/families/trellis/gpu/quantizer.h"
#include "codec/families/trellis/gpu/warp_quantizer.h"
#include "codec/rotation/gpu/tiles.h"

namespace cgx::gpu {

using KernelFamilies =
    FamilyList<maxmin::Tiles, rotation::Tiles<rotated::Quantizer, trellis::Quantizer>,
               floats::Tiles, blocks::Tiles>;

}  // namespace cgx::gpu
