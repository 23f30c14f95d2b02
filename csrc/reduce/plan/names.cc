// What users call operations, reductions and algorithms.
#include "reduce/plan/plan.h"

namespace cgx {

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter_tensor";
    case Operation::kAllGather:
      return "all_gather_into_tensor";
    case Operation::kReduce:
      return "reduce";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kBarrier:
      return "barrier";
  }
  return "unknown operation";
}

const char* name_of(Combine combine) {
  switch (combine) {
    case Combine::kSum:
      return "SUM";
    case Combine::kMin:
      return "MIN";
    case Combine::kMax:
      return "MAX";
    case Combine::kProduct:
      return "PRODUCT";
    case Combine::kBitAnd:
      return "BAND";
    case Combine::kBitOr:
      return "BOR";
    case Combine::kBitXor:
      return "BXOR";
  }
  return "unknown reduction";
}

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kOneShot:
      return "one-shot";
    case Algorithm::kScatterReduceAllGather:
      return "scatter-reduce-all-gather";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kPairwise:
      return "pairwise";
    case Algorithm::kTree:
      return "tree";
  }
  return "unknown algorithm";
}

}  // namespace cgx
