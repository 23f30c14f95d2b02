#include "backend/p2p/mail_room.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <functional>
#include <utility>

#include "backend/adapters/python_error.h"
#include "backend/gpu/call.h"
#include "backend/p2p/mail_work.h"
#include "backend/p2p/message_shape.h"
#include "base/error.h"
#include "tensors/gpu/stream.h"
#include "tensors/memory.h"

namespace cgx {
namespace {

MailDisagreement disagreement_on(int rank) {
  return [rank](int source, const MailShape& sent, const MailTransfer& receive) {
    const auto shape = [](const MailShape& mail) {
      return MessageShape{static_cast<at::ScalarType>(mail.type),
                          static_cast<int64_t>(mail.values)};
    };
    return message_disagreement(source, shape(sent), rank, shape(receive.shape), receive.tag);
  };
}

MailShape mail_shape(const at::Tensor& tensor) {
  return {static_cast<uint32_t>(tensor.scalar_type()), static_cast<uint64_t>(tensor.numel()),
          static_cast<uint64_t>(tensor.nbytes())};
}

}  // namespace

struct MailRoom::Call {
  c10d::OpType op;
  const char* title;
  MailTransfer::Way way;
  int peer, tag;
  at::Tensor tensor;  // the caller's
  at::Tensor memory;  // dense, of the host
  std::byte* data;
  std::shared_ptr<GpuCall> gpu{};
  std::function<void()> last{};
};

MailRoom::MailRoom(const GroupContext& group, Executor& executor, Coalescing& coalescing,
                   std::unique_ptr<MailMemory> memory, std::string carrier)
    : group_(group),
      executor_(executor),
      coalescing_(coalescing),
      carrier_(std::move(carrier)),
      mail_(Mail::make(std::move(memory), disagreement_on(group.rank))) {}

WorkPtr MailRoom::send(const at::Tensor& tensor, int peer, int tag) {
  executor_.check_usable("send");
  at::Tensor memory = readable(tensor);
  if (!memory.device().is_cpu()) memory = memory.to(at::kCPU);
  auto* data = static_cast<std::byte*>(const_cast<void*>(memory.const_data_ptr()));
  return run({c10d::OpType::SEND, "cgx:send", MailTransfer::Way::kSend, peer, tag, tensor,
              std::move(memory), data});
}

WorkPtr MailRoom::receive(const at::Tensor& tensor, std::optional<int> peer, int tag) {
  executor_.check_usable("recv");
  const bool host = tensor.device().is_cpu();
  at::Tensor memory =
      host ? writable(tensor) : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  auto* data = static_cast<std::byte*>(memory.data_ptr());
  Call call{peer ? c10d::OpType::RECV : c10d::OpType::RECVANYSOURCE,
            "cgx:recv",
            MailTransfer::Way::kReceive,
            peer.value_or(MailTransfer::kAnyRank),
            tag,
            tensor,
            memory,
            data};
  if (!memory.is_same(tensor)) call.last = [tensor, memory] { tensor.copy_(memory); };
  if (!host) call.gpu = std::make_shared<GpuCall>(side_stream(tensor.device()), Tensors{tensor});
  return run(std::move(call));
}

WorkPtr MailRoom::run(Call call) {
  const bool sends = call.way == MailTransfer::Way::kSend;
  const char* what = sends ? "send" : "recv";
  TORCH_CHECK_VALUE(call.tag >= 0, "cgx: ", what, ": the tag is ", call.tag,
                    "; allowed: 0 or more");
  const bool other = call.peer >= 0 && call.peer < group_.size && call.peer != group_.rank;
  TORCH_CHECK_VALUE(other || call.op == c10d::OpType::RECVANYSOURCE, "cgx: ", what, " on rank ",
                    group_.rank, ": the peer is ", call.peer, "; allowed: 0 to ", group_.size - 1,
                    ", but not the rank itself");
  const Tensors one = {call.tensor};
  const Tensors inputs = sends ? one : Tensors{}, outputs = sends ? Tensors{} : one;
  const CallShape shape{call.op, std::nullopt, call.tensor.scalar_type(), call.tensor.numel(),
                        call.peer};
  const std::shared_ptr<Watchdog>& watchdog = group_.watchdog;
  CallRecordPtr record = watchdog->begin(shape, inputs, outputs, group_.timeout());
  record->carried_by(carrier_);
  auto work = c10::make_intrusive<MailWork>(record, call.title, inputs, outputs,
                                            executor_.callbacks(), std::move(call.gpu), watchdog,
                                            mail_, std::move(call.last));
  record->watch_work(work);
  record->start();
  try {
    work->begin(call.way, call.peer, call.tag, mail_shape(call.tensor), call.data, call.memory);
  } catch (const ResourceError& e) {
    watchdog->withdraw(record);
    const ResourceError named(str_of(call.title, " on rank ", group_.rank, ": ", e.what()));
    std::rethrow_exception(for_python(std::make_exception_ptr(named)));
  } catch (const Error& e) {  // of the group
    const Failure failure = watchdog->conclude(*record, failure_of(e));
    const std::string text = record->error_text(failure);
    record->finish(text);
    std::rethrow_exception(for_python(failure, text));
  } catch (...) {
    watchdog->withdraw(record);
    throw;
  }
  if (group_.logs(LogLevel::kDebug)) executor_.log_call(*record, "");
  return coalescing_.track(work);
}

void MailRoom::close() { mail_->close(); }

void MailRoom::abandon() { (void)new std::shared_ptr<Mail>(std::move(mail_)); }

}  // namespace cgx
