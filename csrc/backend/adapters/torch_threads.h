// torch's intra-op threads, lent to the engine's codecs.
#pragma once

#include <memory>

#include "base/parallel.h"

namespace cgx {

/// Threads of at::parallel_for, as many as torch.set_num_threads() gives the thread that asks.
std::unique_ptr<const Parallel> torch_threads();

/// Their number on the calling thread: kept when a call is made, given to the thread that runs it.
int intra_op_threads();
void set_intra_op_threads(int count);

}  // namespace cgx
