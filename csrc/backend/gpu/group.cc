#include "backend/gpu/group.h"

#include "backend/adapters/python_error.h"
#include "backend/gpu/connect.h"

namespace cgx {

GpuLane& GpuGroup::lane(const at::Tensor& tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!lane_) {
    // A collective of its own, so that ranks that are in another one, or have died, are found.
    CallShape shape;
    shape.op = kConnectGpus;
    shape.engine = shape.cuda = true;
    Watchdog& watchdog = *group_.watchdog;
    const CallRecordPtr record = watchdog.begin(shape, {}, {}, group_.timeout());
    record->start();
    try {
      // A failed attempt leaves keys behind.
      lane_ = connect_gpu(group_, host_, tensor.device(), str_of("cuda/", lanes_begun_++));
    } catch (const std::exception& e) {
      watchdog.finish(*record, e.what());
      std::rethrow_exception(for_python(std::current_exception()));
    }
    watchdog.finish(*record, "");
    watchdog.attach_also(&lane_->engine());
    engine_ = &lane_->engine();
  }
  TORCH_CHECK_VALUE(lane_->device() == tensor.device(), "cgx: a tensor on ", tensor.device(),
                    ", while rank ", group_.rank, " of this group works on ", lane_->device(),
                    ": a rank uses one GPU");
  return *lane_;
}

bool GpuGroup::moves() const { return gpu_moves(group_, host_.topology()); }

}  // namespace cgx
