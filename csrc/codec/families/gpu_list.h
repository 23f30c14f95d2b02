// The families that have kernels for GPUs: a line for each, with the struct that
// codec/gpu/families.h describes.
#pragma once

#include "codec/families/maxmin/gpu/tiles.h"

namespace cgx::gpu {

using KernelFamilies = FamilyList<maxmin::Tiles>;

}  // namespace cgx::gpu
