#include "backend/process_group_cgx.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "backend/c10d_adapters.h"
#include "backend/config/handshake.h"
#include "backend/gil.h"
#include "backend/python_error.h"
#include "backend/torch_text.h"
#include "backend/torch_threads.h"
#include "backend/version.h"
#include "backend/work/flight_record.h"
#include "base/error.h"
#include "codec/cpu/level.h"
#include "comm/hooks.h"
#include "comm/in_process.h"
#include "comm/mpi/point_to_point.h"
#include "comm/relay/relay.h"
#include "comm/shm/communicator.h"

namespace cgx {
namespace {

using WorkPtr = ProcessGroupCGX::WorkPtr;
using Tensors = ProcessGroupCGX::Tensors;
using std::chrono::milliseconds;

// How long destroy waits for collectives that nobody waited for, before it aborts them.
constexpr auto kShutdownGrace = std::chrono::seconds(10);
// Callbacks that wait for each other need a thread each; more than this many are an error of the
// program.
constexpr size_t kMaxCallbackThreads = 64;
// Slots of a group of one rank carry nothing.
constexpr size_t kUnusedSlotBytes = 4096;

// A store outlives the groups made over it, and torchrun's serves all that one script makes, under
// names that repeat after destroy_process_group(): every making gets keys of its own. Ranks make a
// group equally often.
c10::intrusive_ptr<c10d::Store> fresh_keys(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  const int64_t making = store->add(str_of("cgx/making/", rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>(str_of("making", making), store);
}

// This rank's own environment and options. The other ranks get the error of a bad value, too.
GroupConfig resolve_or_refuse(const OptionFields& fields,
                              const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  try {
    FlightRecord::instance();  // refuses a bad TORCH_FR_BUFFER_SIZE
    default_cpu_level();       // and CGX_CPU_LEVEL
    return resolve_group(fields);
  } catch (const std::exception& e) {
    auto rendezvous = make_store_rendezvous(store);
    refuse_handshake(*rendezvous, rank, plain_text(e));
    leave_together(*rendezvous, rank, size);
    throw;
  }
}

std::atomic<uint64_t> next_serial{0};

const char* name_of(CommunicatorKind communicator) {
  switch (communicator) {
    case CommunicatorKind::kShm:
      return "shm";
    case CommunicatorKind::kMpi:
      return "mpi";
    case CommunicatorKind::kGloo:
      return "gloo";
    case CommunicatorKind::kNccl:
      return "nccl";
  }
  return "unknown communicator";
}

// Callbacks of forwarded works run on the threads of the inner backend, which names them.
bool on_thread_of_gloo() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string_view(name).starts_with("pt_gloo");
}

// What the group's settings make of a reduction, as long as they stay as they are: for logs.
std::string group_codec(const OptionFields& options, const GroupConfig& config) {
  const auto codec = resolve_codec(options, config);
  if (codec != raw_codec()) return codec->describe();
  return str_of("exact unless a call or a CGXState says otherwise (bits=", bits_in_force(options),
                ')');
}

// Of the tensors of the host: NCCL carries those of GPUs only.
GroupConfig for_host(GroupConfig config) {
  if (config.inner == CommunicatorKind::kNccl) config.inner = CommunicatorKind::kShm;
  if (config.cross == CommunicatorKind::kNccl) config.cross = CommunicatorKind::kGloo;
  return config;
}

// The same on all ranks, also where a rank has only one of the communicators.
std::string communicator_name(const GroupConfig& config, const Topology& topology) {
  if (topology.size() == 1) return "in-process";
  if (topology.host_count() == 1) return name_of(config.inner);
  if (!topology.two_levels()) return name_of(config.cross);
  return str_of(name_of(config.inner), "+", name_of(config.cross));
}

}  // namespace

ProcessGroupCGX::ProcessGroupCGX(StorePtr store, int rank, int size,
                                 c10::intrusive_ptr<Options> options, Factories factories)
    : Backend(rank, size),
      serial_(next_serial++),
      process_(getpid()),
      store_(fresh_keys(store, rank)),
      options_(std::move(options)),
      config_(resolve_or_refuse(options_->fields, store_, rank, size)),
      notices_(options_->fields, rank == 0 && config_.log >= LogLevel::kWarn),
      call_codec_(std::make_unique<CallCodec>(options_->fields, config_)),
      factories_(std::move(factories)) {
  auto rendezvous = make_store_rendezvous(store_);
  try {
    make(*rendezvous);
  } catch (...) {
    leave_together(*rendezvous, rank_, size_);
    throw;
  }
  init();
}

void ProcessGroupCGX::make(Rendezvous& rendezvous) {
  const Deadline deadline = Deadline::after(options_->timeout);
  watchdog_ = std::make_shared<Watchdog>(
      std::make_shared<const GroupLabel>(GroupLabel{
          serial_, options_->group_name, options_->group_desc, options_->global_ranks_in_group,
          rank_, size_, config_.log == LogLevel::kDebug}),
      store_);
  // First, so that a disagreement is found before anything is built on it.
  Peers peers = handshake(rendezvous, rank_, size_, options_->fields, config_.host_id,
                          factories_.address, deadline);
  hosts_ = std::move(peers.hosts);
  if (size_ > 1) address_ = factories_.choose_address(rank_, peers.addresses);
  const Topology topology(hosts_, config_.leader_only);
  on_one_host_ = topology.host_count() == 1;
  const GroupConfig host = for_host(config_);
  const EngineOptions engine = engine_options(host, topology);
  inner_ = factories_.inner(c10::make_intrusive<c10d::PrefixStore>("inner", store_), rank_, size_,
                            options_->timeout, address_);
  Communicators communicators{topology, rank_, nullptr, nullptr, communicator_name(host, topology)};
  // Those inside hosts first: the other hosts need not wait for one that cannot go on.
  if (on_one_host_ || topology.two_levels()) {
    connect_level("inner", rendezvous, [&] { connect_inner(communicators); });
  }
  if (!on_one_host_) connect_level("cross", rendezvous, [&] { connect_cross(communicators); });
  engine_ = std::make_unique<Engine>(
      std::move(communicators), engine,
      [watchdog = watchdog_](Failure failure) { return watchdog->explain(std::move(failure)); });
  engine_->use(torch_threads());
  if (config_.autotune) {
    Autotuner::Log log;
    if (config_.log >= LogLevel::kInfo) {
      log = [where = str_of("rank ", rank_, " of ", size_, ", group '", options_->group_name,
                            "': ")](const std::string& text) { log_line(where + text); };
    }
    // bf16, whatever the option half says: values that the asked bits can carry must not become
    // infinite because of the tuner's choice, but for those within a rounding of 2^128.
    CodecSpec half;
    half.name = "bf16";
    half.bits = 16;
    autotuner_ = std::make_unique<Autotuner>(*engine_, make_codec(half), std::move(log));
  }
  callbacks_ = std::make_shared<TaskQueue>("cgx-callback", kMaxCallbackThreads);
  worker_ = std::make_unique<TaskQueue>("cgx-worker", 1);
  watchdog_->attach(engine_.get(), inner_);
  if (config_.log >= LogLevel::kInfo) {
    log_line(str_of("rank ", rank_, " of ", size_, ", group '", options_->group_name,
                    "': torch_cgx ", kVersion, ", SIMD level ", cpu_level(), ", ",
                    group_codec(options_->fields, config_), "; communicator ",
                    engine_->communicator(), ", ", topology.host_count(),
                    topology.host_count() == 1 ? " host" : " hosts", ", reductions inner ",
                    config_.inner_reduction, ", cross ", config_.cross_reduction,
                    ", everything else over gloo"));
  }
}

void ProcessGroupCGX::connect_level(const char* level, Rendezvous& rendezvous,
                                    const std::function<void()>& connect) {
  const Deadline deadline = Deadline::after(options_->timeout);
  try {
    connect();
  } catch (const std::exception& e) {
    // Not every rank has every communicator: those without it would go on alone.
    confirm(rendezvous, level, rank_, size_, e.what(), deadline);
    throw;
  }
  confirm(rendezvous, level, rank_, size_, "", deadline);
}

void ProcessGroupCGX::connect_inner(Communicators& communicators) {
  const int host = communicators.topology.host_of(rank_);
  const std::vector<int>& members = communicators.topology.host(host);
  const char* variable = "CGX_INNER_COMMUNICATOR_TYPE";
  if (config_.inner == CommunicatorKind::kNccl) require_nccl(variable);
  if (!on_one_host_ && members.size() == 1) return;
  communicators.inner = make_communicator(for_host(config_).inner, variable, str_of("host", host),
                                          members, communicators.topology.local_of(rank_));
}

void ProcessGroupCGX::connect_cross(Communicators& communicators) {
  const char* variable = "CGX_CROSS_COMMUNICATOR_TYPE";
  if (config_.cross == CommunicatorKind::kNccl) require_nccl(variable);
  if (on_one_host_ || !communicators.topology.in_team(rank_)) return;
  const int team = communicators.topology.local_of(rank_);
  communicators.cross =
      make_communicator(for_host(config_).cross, variable, str_of("team", team),
                        communicators.topology.team(team), communicators.topology.host_of(rank_));
}

std::unique_ptr<Communicator> ProcessGroupCGX::make_communicator(CommunicatorKind kind,
                                                                 const char* variable,
                                                                 const std::string& keys,
                                                                 const std::vector<int>& members,
                                                                 int rank) {
  if (size_ == 1) return std::move(make_in_process_group(1, kUnusedSlotBytes).front());
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = connect(kind, variable, keys, rank, static_cast<int>(members.size()),
                           config_.shm_segment_bytes);
  } catch (const std::exception& e) {
    if (static_cast<int>(members.size()) == size_) throw;
    // Communicators count their own ranks.
    Failure failure = failure_of(e);
    std::string text;
    for (size_t i = 0; i < members.size(); ++i) text += str_of(i == 0 ? "" : ", ", members[i]);
    failure.text = str_of("communicator among the ranks ", text, " of the group, called 0 to ",
                          members.size() - 1, " here: ", failure.text);
    if (dynamic_cast<const ConfigError*>(&e) != nullptr) throw ConfigError(failure.text);
    throw_failure(failure);
  }
  communicator->call_ranks(members);
  return hooked(std::move(communicator));
}

std::unique_ptr<Rendezvous> ProcessGroupCGX::rendezvous_at(StorePtr store) {
  if (!engine_) return make_store_rendezvous(std::move(store));  // nobody could have failed yet
  return make_store_rendezvous(std::move(store), [this] {
    if (const auto failure = engine_->failure()) throw_failure(*failure);
  });
}

std::unique_ptr<Communicator> ProcessGroupCGX::connect(CommunicatorKind kind, const char* variable,
                                                       const std::string& keys, int rank, int size,
                                                       size_t shm_bytes) {
  const Deadline deadline = Deadline::after(options_->timeout);
  auto store = c10::make_intrusive<c10d::PrefixStore>(keys, store_);
  auto rendezvous = rendezvous_at(store);
  switch (kind) {
    case CommunicatorKind::kShm:
      return make_shm_communicator(*rendezvous, rank, size, shm_bytes, deadline);
    case CommunicatorKind::kGloo:
      // A backend of its own: its messages must not meet those of dist.send/recv in inner_.
      return make_relay_communicator(make_c10d_point_to_point(factories_.inner(
                                         store, rank, size, options_->timeout, address_)),
                                     relay_bytes());
    case CommunicatorKind::kMpi:
      return make_relay_communicator(
          mpi_point_to_point_from(factories_.mpi(), *rendezvous, rank, size, deadline),
          relay_bytes());
    case CommunicatorKind::kNccl:
      break;  // carries no memory of the host
  }
  throw ConfigError("unknown communicator");
}

void ProcessGroupCGX::require_nccl(const char* variable) const {
  if (factories_.inner_nccl) return;
  throw ConfigError(str_of(variable,
                           "='NCCL' needs a torch that was built with NCCL, and this one ",
                           "is not; use MPI, GLOO", on_one_host_ ? " or SHM" : ""));
}

size_t ProcessGroupCGX::relay_bytes() const {
  return std::max(config_.fusion_buffer_bytes, config_.shm_segment_bytes);
}

ProcessGroupCGX::~ProcessGroupCGX() {
  shutdown();
  // Gloo's destructor joins threads that want the lock, to drop the tensors of their last works.
  ReleaseGilIfHeld no_gil;
  autotuner_.reset();
  gpu_.reset();
  engine_.reset();  // holds the communicator, which may be Gloo too
  if (on_thread_of_gloo()) {
    // A callback held the last reference: a thread that joined itself would end the process.
    std::thread([inner = std::move(inner_)]() mutable { inner.reset(); }).detach();
  }
  inner_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupCGX::getBackendOptions() { return options_; }

void ProcessGroupCGX::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  inner_->setTimeout(timeout);
  std::lock_guard<std::mutex> lock(gpu_mutex_);
  if (inner_gpu_) inner_gpu_->setTimeout(timeout);
}

void ProcessGroupCGX::setSequenceNumberForGroup() {
  // Every rank counts its own calls from 0; equal programs count alike.
}

uint64_t ProcessGroupCGX::getSequenceNumberForGroup() { return watchdog_->sequence(); }

void ProcessGroupCGX::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(onCompletionHook_ == nullptr, "cgx: an on-completion hook is already registered");
  onCompletionHook_ = std::move(hook);
}

void ProcessGroupCGX::waitForPendingWorks() {
  worker_->wait_idle(Deadline());
  callbacks_->wait_idle(Deadline());
}

void ProcessGroupCGX::enableCollectivesTiming() {
  // Engine works always know their duration; the inner backend may want to be asked.
  inner_->enableCollectivesTiming();
}

c10d::ErrorType ProcessGroupCGX::getError() {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void ProcessGroupCGX::abort() {
  if (process_ != getpid()) return;  // a forked child must not end its parent's group
  watchdog_->fail({FailureKind::kAborted,
                   str_of("rank ", rank_, " was aborted: abort() of the process group was called"),
                   rank_});
}

void ProcessGroupCGX::shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (process_ != getpid()) {
    // A forked child has none of the threads, and must not speak for its parent.
    (void)worker_.release();
    (void)new std::shared_ptr<TaskQueue>(std::move(callbacks_));
    (void)autotuner_.release();
    (void)engine_.release();
    (void)gpu_.release();
    (void)inner_gpu_.release();
    (void)inner_.release();
    (void)new std::shared_ptr<Watchdog>(std::move(watchdog_));
    return;
  }
  ReleaseGilIfHeld no_gil;
  if (worker_) {
    if (!worker_->wait_idle(Deadline::after(kShutdownGrace))) {
      const std::string why = "the process group was destroyed while this collective was under way";
      engine_->abort(why);
      if (gpu_) gpu_->engine().abort(why);
    }
    worker_->close();
    callbacks_->close();
    watchdog_->detach();
    engine_->close();
    if (gpu_) gpu_->engine().close();
  }
  if (inner_gpu_) inner_gpu_->shutdown();
  if (inner_) inner_->shutdown();
}

void ProcessGroupCGX::check_usable(const char* what) const {
  TORCH_CHECK(
      process_ == getpid(), "cgx: ", what, " on rank ", rank_,
      ": the process group belongs to the parent of this process; a forked child cannot use it");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!closed_, "cgx: ", what, " on rank ", rank_,
                ": the process group has been destroyed");
  }
  if (auto failure = engine_->first_cause()) {
    // The inner backend could go on, but its peers may be gone, or anywhere in the program.
    std::rethrow_exception(for_python(*failure, error_text(watchdog_->next(what), *failure)));
  }
}

ProcessGroupCGX::BackendPtr ProcessGroupCGX::split(
    const StorePtr& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) return nullptr;
  auto own = c10::make_intrusive<Options>();
  own->timeout = options_->timeout;
  own->fields = options_->fields;
  if (auto given = c10::dynamic_intrusive_pointer_cast<Options>(options))
    own->fields = given->fields;
  if (options) {
    own->timeout = options->timeout;
    own->group_name = options->group_name;
    own->group_desc = options->group_desc;
    own->global_ranks_in_group = options->global_ranks_in_group;
  }
  return c10::make_intrusive<ProcessGroupCGX>(store, static_cast<int>(mine - ranks.begin()),
                                              static_cast<int>(ranks.size()), std::move(own),
                                              factories_);
}

void ProcessGroupCGX::startCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  // An exception inside torch's coalescing manager ends it without endCoalescing().
  coalesced_.clear();
  if (std::exchange(batch_begun_, false)) inner_gpu_->endCoalescing();
  coalescing_ = true;
}

WorkPtr ProcessGroupCGX::endCoalescing() {
  std::vector<WorkPtr> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(coalescing_, "cgx: endCoalescing() without startCoalescing()");
    coalescing_ = false;
    works.swap(coalesced_);
    if (std::exchange(batch_begun_, false)) {
      if (WorkPtr batch = inner_gpu_->endCoalescing()) works.push_back(std::move(batch));
    }
  }
  Tensors outputs;
  return c10::make_intrusive<GroupedWork>(std::move(works), std::move(outputs));
}

WorkPtr ProcessGroupCGX::track(WorkPtr work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

}  // namespace cgx
