// Hands collectives that the engine does not run to the inner backends, unchanged and exact.
//
// Thread-safety: as c10d::Backend.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "backend/adapters/torch_types.h"
#include "backend/executor.h"
#include "backend/group_context.h"
#include "backend/inner/coalescing.h"
#include "backend/inner/forwarded_work.h"
#include "backend/inner/inner_backends.h"
#include "backend/work/call_record.h"

namespace cgx {

class Forwarder {
 public:
  /// All outlive this object.
  Forwarder(const GroupContext& group, InnerBackends& inner, Coalescing& coalescing,
            Executor& executor)
      : group_(group), inner_(inner), coalescing_(coalescing), executor_(executor) {}

  /// The backend for calls that the engine does not take.
  BackendPtr backend_for(const at::Tensor& tensor) { return inner_.for_tensor(tensor); }
  /// The same for a send or a receive, which may belong to a batch.
  BackendPtr backend_for_batch(const at::Tensor& tensor);

  /// Hands a call to the inner backend, which `run` calls. `last`: null, or what is left to do.
  WorkPtr forward(const CallShape& shape, const Tensors& inputs, const Tensors& outputs,
                  std::chrono::milliseconds timeout, const std::function<WorkPtr()>& run,
                  std::shared_ptr<LastStep> last = nullptr);
  /// A work that ends when `work`, of forward(), has ended and `finish`, on the worker's thread,
  /// has run. `copies`: what else it reads.
  WorkPtr after(const char* title, const WorkPtr& work, const Tensors& outputs,
                const Tensors& copies, std::chrono::milliseconds timeout,
                std::function<void()> finish);
  /// Runs a collective of the inner backend that writes `outputs`. It gets dense memory: the
  /// outputs' own, or where they are strided other memory, which is copied to them when the
  /// collective has ended. `in_place`: it reads them, too. `last`: null, or what is to be done with
  /// that memory before.
  WorkPtr through_copies(const CallShape& shape, const char* title, const Tensors& inputs,
                         const Tensors& outputs, bool in_place, std::chrono::milliseconds timeout,
                         const std::function<WorkPtr(Tensors&)>& run,
                         std::function<void(Tensors&)> last = nullptr);

 private:
  /// Makes Gloo where there is none yet. Errors as InnerBackends::ensure_gloo(), for Python.
  void ensure_gloo(const CallRecordPtr& record);

  const GroupContext& group_;
  InnerBackends& inner_;
  Coalescing& coalescing_;
  Executor& executor_;
};

}  // namespace cgx
