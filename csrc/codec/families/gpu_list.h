// The families that have kernels for GPUs: each in one line, with the struct that codec/gpu/families.h
// describes.
#pragma once

#include "codec/families/maxmin/gpu/tiles.h"

namespace cgx::gpu {

using KernelFamilies = FamilyList<MaxMinTiles>;

}  // namespace cgx::gpu
