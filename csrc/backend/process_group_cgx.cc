#include "backend/process_group_cgx.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "backend/adapters/gil.h"
#include "backend/adapters/store_rendezvous.h"
#include "backend/communicator_factory.h"
#include "backend/config/handshake.h"
#include "backend/version.h"
#include "base/error.h"
#include "codec/ops/level.h"
#include "reduce/plan/call_text.h"
#include "reduce/schedule/host_stages.h"
#include "tensors/threads.h"

namespace cgx {
namespace {

using std::chrono::milliseconds;

// What has ended holds its tensors a little longer, on another thread.
constexpr auto kLetGo = std::chrono::seconds(1);

// Null where nothing is to be tuned.
std::unique_ptr<Autotuner> make_autotuner(const GroupContext& group, Engine& engine) {
  if (!group.config.autotune) return nullptr;
  Autotuner::Log log;
  if (group.logs(LogLevel::kInfo)) {
    log = [where = group.title()](const std::string& text) { log_line(where + text); };
  }
  // bf16, whatever the option half says: a value that the requested codec can carry must not become
  // infinite through the tuner's decision. Only values within one rounding of 2^128 still can.
  return std::make_unique<Autotuner>(engine, make_codec("bf16"), std::move(log));
}

void log_group(const GroupContext& group, const Engine& engine, const CodecPolicy& policy,
               bool has_gloo) {
  const int hosts = engine.topology().host_count();
  log_line(str_of(group.title(), "torch_cgx ", kVersion, ", SIMD level ", cpu_level(), ", ",
                  policy.describe(), "; communicator ", engine.communicator(), ", ", hosts,
                  hosts == 1 ? " host" : " hosts", ", reductions inner ",
                  group.config.intra_reduction, ", cross ", group.config.cross_reduction,
                  has_gloo ? ", with an inner gloo" : ", an inner gloo when a call needs it"));
}

}  // namespace

c10::intrusive_ptr<ProcessGroupCGX> ProcessGroupCGX::make(StorePtr store, int rank, int size,
                                                          c10::intrusive_ptr<GroupOptions> options,
                                                          Factories factories) {
  auto group = c10::make_intrusive<ProcessGroupCGX>(std::move(store), rank, size,
                                                    std::move(options), std::move(factories));
  LeftOver::add(group, group.get());
  return group;
}

ProcessGroupCGX::ProcessGroupCGX(StorePtr store, int rank, int size,
                                 c10::intrusive_ptr<GroupOptions> options, Factories factories)
    : Backend(rank, size),
      group_(begin_group(store, rank, size, std::move(options), std::move(factories))) {
  auto rendezvous = make_store_rendezvous(group_.store);
  try {
    set_up(*rendezvous);
  } catch (const TimeoutError& e) {
    leave_together(*rendezvous, group_.rank, group_.size);
    throw TimeoutError(with_limit(e.what()));
  } catch (...) {
    leave_together(*rendezvous, group_.rank, group_.size);
    throw;
  }
  init();
}

void ProcessGroupCGX::set_up(Rendezvous& rendezvous) {
  const Meeting meeting = meet(group_, rendezvous);
  policy_ = std::make_unique<CodecPolicy>(group_.options->fields, group_.config, group_.on_one_host,
                                          group_.rank == 0 && group_.logs(LogLevel::kWarn));
  const EngineOptions options = engine_options(for_host(group_.config), meeting.topology);
  inner_ = std::make_unique<InnerBackends>(group_);
  messages_ = std::make_unique<GlooMessages>(group_.rank);
  Communicators communicators =
      CommunicatorFactory(group_).connect_host(meeting, rendezvous, *inner_);
  group_.address = inner_->address();
  const std::string carrier = communicators.name;
  const bool one_level = meeting.topology.host_count() == 1 && group_.size > 1;
  std::unique_ptr<MailMemory> shared = one_level ? communicators.intra->mail() : nullptr;
  engine_ = std::make_unique<Engine>(std::move(communicators), options,
                                     [watchdog = group_.watchdog](Failure failure) {
                                       return watchdog->explain(std::move(failure));
                                     });
  engine_->use(std::make_unique<HostStages>(torch_threads()));
  autotuner_ = make_autotuner(group_, *engine_);
  gpu_ = std::make_unique<GpuGroup>(group_, *engine_);
  engine_calls_ = std::make_unique<EngineCalls>(group_, *engine_, *gpu_);
  move_calls_ = std::make_unique<MoveCalls>(group_, *engine_, *gpu_);
  executor_ = std::make_unique<Executor>(group_, *engine_, autotuner_.get(), *gpu_, coalescing_,
                                         onCompletionHook_);
  forwarder_ = std::make_unique<Forwarder>(group_, *inner_, coalescing_, *executor_);
  if (shared) {
    mail_ = std::make_unique<MailRoom>(group_, *executor_, coalescing_, std::move(shared), carrier);
  }
  if (group_.logs(LogLevel::kInfo)) {
    log_group(group_, *engine_, *policy_, inner_->connections() != nullptr);
  }
  group_.watchdog->attach(engine_.get(), inner_->connections());
}

ProcessGroupCGX::~ProcessGroupCGX() {
  if (group_.process != getpid()) {
    abandon();
    return;
  }
  shutdown();
  // Gloo's destructor joins threads that take Python's lock to drop the tensors of their last
  // works.
  ReleaseGilIfHeld no_gil;
  autotuner_.reset();
  gpu_.reset();
  engine_.reset();  // holds the communicator, which may be Gloo too
  // Peers that wait for this rank, and what is stuck here, end with the connections.
  if (const auto gloo = inner_->connections(); gloo && stuck_) gloo->close();
  inner_->destroy_gloo(failed_ || stuck_);
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupCGX::getBackendOptions() {
  return group_.options;
}

void ProcessGroupCGX::setTimeout(milliseconds timeout) {
  group_.options->timeout = timeout;
  inner_->set_timeout(timeout);
}

void ProcessGroupCGX::setSequenceNumberForGroup() {
  // Every rank counts its own calls from 0; equal programs count alike.
}

uint64_t ProcessGroupCGX::getSequenceNumberForGroup() { return group_.watchdog->sequence(); }

void ProcessGroupCGX::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(onCompletionHook_ == nullptr, "cgx: an on-completion hook is already registered");
  onCompletionHook_ = std::move(hook);
}

void ProcessGroupCGX::waitForPendingWorks() { executor_->wait_idle(); }

void ProcessGroupCGX::enableCollectivesTiming() {
  // Works of the engine always have a duration; the inner backend may need this call.
  inner_->enable_timing();
}

c10d::ErrorType ProcessGroupCGX::getError() { return executor_->error(); }

void ProcessGroupCGX::abort() {
  if (group_.process != getpid()) return;  // a forked child must not end its parent's group
  group_.watchdog->fail(
      {FailureKind::kAborted,
       str_of("rank ", group_.rank, " was aborted: abort() of the process group was called"),
       group_.rank});
}

void ProcessGroupCGX::shutdown() {
  if (group_.process != getpid()) return;  // a forked child must not act for its parent
  if (!executor_->begin_close()) return;
  ReleaseGilIfHeld no_gil;
  messages_->close();
  if (mail_) mail_->close();
  executor_->close();
  const bool idle = group_.watchdog->idle();
  failed_ = engine_->failure().has_value();
  if (idle && !failed_ && inner_->connections()) group_.watchdog->leave();
  stuck_ = !idle && !failed_ && !group_.watchdog->collectives_end(Deadline::after(kLetGo));
  group_.watchdog->detach();
  engine_->close();
  if (Engine* gpu = gpu_->engine()) gpu->close();
  inner_->shutdown();
  // Somebody may hold this object until Python has shut down (left_over.h). Calls that are under way
  // keep Gloo until then.
  if (idle) inner_->destroy_gloo(failed_);
}

void ProcessGroupCGX::close_if_idle() {
  if (group_.process != getpid()) return;
  ReleaseGilIfHeld no_gil;
  if (group_.watchdog->idle() && executor_->wait_idle(Deadline::after(kLetGo))) shutdown();
}

void ProcessGroupCGX::abandon() {
  executor_->abandon();
  (void)autotuner_.release();
  (void)engine_.release();
  gpu_->abandon();
  messages_->abandon();
  if (mail_) mail_->abandon();
  inner_->abandon();
  (void)new std::shared_ptr<Watchdog>(group_.watchdog);
}

BackendPtr ProcessGroupCGX::split(const StorePtr& store, const std::vector<int>& ranks,
                                  const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  auto mine = std::find(ranks.begin(), ranks.end(), group_.rank);
  if (mine == ranks.end()) return nullptr;
  auto own = c10::make_intrusive<GroupOptions>();
  own->timeout = group_.options->timeout;
  own->fields = group_.options->fields;
  if (auto given = c10::dynamic_intrusive_pointer_cast<GroupOptions>(options))
    own->fields = given->fields;
  if (options) {
    own->timeout = options->timeout;
    own->group_name = options->group_name;
    own->group_desc = options->group_desc;
    own->global_ranks_in_group = options->global_ranks_in_group;
  }
  return make(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
              std::move(own), group_.factories);
}

void ProcessGroupCGX::startCoalescing() { coalescing_.start(); }

WorkPtr ProcessGroupCGX::endCoalescing() { return coalescing_.end(); }

}  // namespace cgx
