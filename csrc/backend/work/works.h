// c10d::Works that stand for others, and what all kinds of works need.
#pragma once

#include <chrono>
#include <exception>
#include <string_view>
#include <vector>

#include "backend/adapters/torch_types.h"

namespace cgx {

/// Text of c10d::Work::wait() when its own timeout has passed while the collective goes on.
inline constexpr std::string_view kWaitRanOut = "Operation timed out!";

/// A future of a list of tensors, on the devices of `outputs`.
FuturePtr make_tensor_list_future(const Tensors& outputs);

/// The work of a call for which the backend returned none because it only used the calling thread's
/// current streams (NCCL, synchronous calls): nothing is left to wait for. `tensors`: the results.
WorkPtr work_in_order(c10d::OpType op, Tensors tensors);

/// True if the work has succeeded. Works of NCCL only show whether they have failed.
bool succeeded(const c10d::Work& work);

/// Several works as one (coalesced operations): done when all are, waits for all, throws the first
/// error.
class GroupedWork : public c10d::Work {
 public:
  GroupedWork(std::vector<WorkPtr> works, Tensors outputs);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  Tensors result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override;
  FuturePtr getFuture() override;

 private:
  const std::vector<WorkPtr> works_;
  const Tensors outputs_;
};

}  // namespace cgx
