#include "backend/inner/forwarder.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/adapters/python_error.h"
#include "backend/gpu/call.h"
#include "backend/inner/gloo_tensors.h"
#include "backend/work/engine_work.h"
#include "backend/work/works.h"
#include "base/error.h"
#include "comm/gloo/error_text.h"
#include "tensors/gpu/stream.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

void wait_until(c10d::Work& work, const Deadline& deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline.left());
  // Gloo takes 0 as "no timeout given".
  work.wait(std::max(left, milliseconds(1)));
}

}  // namespace

BackendPtr Forwarder::backend_for_batch(const at::Tensor& tensor) {
  BackendPtr backend = backend_for(tensor);
  if (!inner_.is_gloo(backend)) coalescing_.join_batch(backend);
  return backend;
}

void Forwarder::ensure_gloo(const CallRecordPtr& record) {
  Watchdog& watchdog = *group_.watchdog;
  try {
    inner_.ensure_gloo(executor_.engine());
    return;
  } catch (const TimeoutError& e) {
    watchdog.give_up(*record, e);
  } catch (const PeerLostError& e) {
    watchdog.give_up(*record, e);
  } catch (const AbortedError& e) {
    watchdog.give_up(*record, e);
  } catch (const std::exception&) {
    // All ranks know that it could not be made, and no rank has sent anything else.
    if (executor_.engine().failure()) watchdog.give_up(*record, Error("Gloo was not made"));
    watchdog.withdraw(record);
    std::rethrow_exception(for_python(std::current_exception()));
  }
}

WorkPtr Forwarder::forward(const CallShape& shape, const Tensors& inputs, const Tensors& outputs,
                           milliseconds timeout, const std::function<WorkPtr()>& run,
                           std::shared_ptr<LastStep> last) {
  executor_.check_usable(name_of(shape.op));
  if (timeout == c10d::kUnsetTimeout) timeout = group_.timeout();
  CallShape said = shape;
  // Gloo moves both: a root may have its values on the host, and its peers theirs on a GPU.
  said.cuda = shape.cuda && inner_.gpu_has_nccl();
  const std::shared_ptr<Watchdog>& watchdog = group_.watchdog;
  CallRecordPtr record = watchdog->begin(said, inputs, outputs, timeout);
  if (!said.cuda) ensure_gloo(record);
  WorkPtr inner;
  try {
    inner = run();
  } catch (const std::runtime_error& e) {
    // Gloo's own errors: a connection was closed. What it says of arguments is of other types.
    record->finish(plain_text(e));
    watchdog->rethrow(*record, plain_text(e), true);
  } catch (const c10::DistError& e) {
    // NCCL's: something may have been sent.
    record->finish(plain_text(e));
    watchdog->rethrow(*record, plain_text(e), true);
  } catch (...) {
    watchdog->withdraw(record);
    throw;
  }
  if (!inner) inner = work_in_order(shape.op, outputs);
  auto work = c10::make_intrusive<ForwardedWork>(inner, record, watchdog, outputs, std::move(last));
  record->start();  // the watch looks at the work from here on
  if (group_.logs(LogLevel::kDebug)) executor_.log_call(*record, "");
  return coalescing_.track(work);
}

WorkPtr Forwarder::after(const char* title, const WorkPtr& work, const Tensors& outputs,
                         const Tensors& copies, milliseconds timeout,
                         std::function<void()> finish) {
  if (timeout == c10d::kUnsetTimeout) timeout = group_.timeout();
  Tensors memory = outputs;
  memory.insert(memory.end(), copies.begin(), copies.end());
  const bool on_gpu = first_of(memory).is_cuda();
  auto gpu =
      on_gpu ? std::make_shared<GpuCall>(side_stream(memory.front().device()), memory) : nullptr;
  const auto& forwarded = static_cast<const ForwardedWork&>(*work);
  auto last = c10::make_intrusive<EngineWork>(forwarded.record(), title, Tensors{}, outputs,
                                              executor_.callbacks(), gpu);
  executor_.submit(title, [last, work, timeout, gpu, finish = std::move(finish)] {
    std::exception_ptr error;
    last->started();
    try {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      const GpuCall::Turn turn(gpu.get());
      wait_until(*work, Deadline::after(timeout));
      finish();
    } catch (...) {
      error = std::current_exception();
    }
    last->complete(error);
  });
  return coalescing_.track(last);
}

WorkPtr Forwarder::through_copies(const CallShape& shape, const char* title, const Tensors& inputs,
                                  const Tensors& outputs, bool in_place, milliseconds timeout,
                                  const std::function<WorkPtr(Tensors&)>& run,
                                  std::function<void(Tensors&)> last) {
  Tensors dense;
  for (const at::Tensor& output : outputs) {
    dense.push_back(in_place ? readable(output) : writable(output));
  }
  const bool own = std::equal(dense.begin(), dense.end(), outputs.begin(),
                              [](const auto& a, const auto& b) { return a.is_same(b); });
  // Posted on this thread: Gloo numbers its calls, and all ranks make them in this order.
  WorkPtr work = forward(shape, inputs, outputs, timeout, [&] { return run(dense); });
  if (own && !last) return work;
  return after(title, work, outputs, dense, timeout,
               [dense, outputs, last = std::move(last)]() mutable {
                 if (last) last(dense);
                 for (size_t i = 0; i < outputs.size(); ++i) {
                   if (!dense[i].is_same(outputs[i])) outputs[i].copy_(dense[i]);
                 }
               });
}

}  // namespace cgx
