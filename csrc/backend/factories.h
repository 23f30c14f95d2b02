// Functions that Python gives a group: they make the objects that only torch's Python side, or
// another Python package, can make.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "backend/adapters/torch_types.h"
#include "tensors/gpu/kernels.h"

namespace cgx {

/// Makes an inner backend over the ranks of a store: (store, rank, size, timeout).
using InnerFactory =
    std::function<BackendPtr(const StorePtr&, int, int, std::chrono::milliseconds)>;
/// The same of Gloo; the last: the address of this host to listen at, or empty.
using GlooFactory = std::function<BackendPtr(const StorePtr&, int, int, std::chrono::milliseconds,
                                             const std::string&)>;
/// Chooses that address from the addresses of all ranks: (rank, addresses). Throws on all ranks if
/// there is none.
using ChooseAddress = std::function<std::string(int, const std::vector<std::string>&)>;
/// The table of functions of the MPI that is installed (comm/mpi/api.h). Throws an error that
/// names what is missing.
using MpiFactory = std::function<const void*()>;

struct Factories {
  GlooFactory inner;        // for tensors of the host
  InnerFactory inner_nccl;  // empty: this torch has no NCCL
  MpiFactory mpi;
  LoadKernels kernels;
  ChooseAddress choose_address;
  std::function<std::string()> report_addresses;  // this rank's, in a line
};

}  // namespace cgx
