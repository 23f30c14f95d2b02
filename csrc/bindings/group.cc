#include "bindings/group.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>

#include "backend/adapters/python_error.h"
#include "backend/communicator_factory.h"
#include "backend/process_group_cgx.h"
#include "base/error.h"
#include "bindings/codec.h"
#include "bindings/mpi.h"
#include "bindings/parameters.h"
#include "bindings/simulation.h"
#include "bindings/tuning.h"

namespace py = pybind11;

namespace cgx {
namespace {

using Options = GroupOptions;
using OptionsPtr = c10::intrusive_ptr<Options>;
using std::chrono::milliseconds;

OptionsPtr make_options(const py::args& args, const py::kwargs& kwargs) {
  if (!args.empty()) {
    throw py::type_error(str_of("Options(", std::string(py::repr(args[0])),
                                "): all arguments are keywords, as in Options(bits=4)"));
  }
  auto options = c10::make_intrusive<Options>();
  for (const auto& [key, value] : kwargs) {
    const Setting& known = setting(py::str(key));
    if (value.is_none()) continue;
    options->fields.set(known.name, canonical_of(known, "Options: " + known.name, value));
  }
  return options;
}

py::dict given(const Options& options) {
  py::dict out;
  for (const auto& [name, text] : options.fields.all()) {
    out[py::str(name)] = value_of(setting(name), text);
  }
  return out;
}

std::string repr(const Options& options) {
  std::string text;
  for (const auto& [name, value] : given(options)) {
    text += (text.empty() ? "" : ", ") + std::string(py::str(name)) + "=" +
            std::string(py::repr(value));
  }
  return "Options(" + text + ")";
}

// The value in force of every setting: the option, else the environment's value, else the default.
py::dict settings_in_force(const OptionFields& fields) {
  py::dict out;
  for (const Setting& s : settings()) out[s.name.c_str()] = value_of(s, lookup(fields, s));
  return out;
}

// All fields, those too that only some versions of torch have.
OptionsPtr copy_of(const Options& options) { return c10::make_intrusive<Options>(options); }

// Holds a function that may be called and destroyed on any thread.
std::shared_ptr<py::function> hold(py::function function) {
  return {new py::function(std::move(function)), [](py::function* held) {
            py::gil_scoped_acquire gil;
            delete held;
          }};
}

InnerFactory wrap_factory(py::function factory) {
  auto held = hold(std::move(factory));
  return [held](const StorePtr& store, int rank, int size, milliseconds timeout) {
    py::gil_scoped_acquire gil;
    return (*held)(store, rank, size, timeout).cast<BackendPtr>();
  };
}

GlooFactory wrap_gloo(py::function factory) {
  auto held = hold(std::move(factory));
  return [held](const StorePtr& store, int rank, int size, milliseconds timeout,
                const std::string& address) {
    py::gil_scoped_acquire gil;
    return (*held)(store, rank, size, timeout, address).cast<BackendPtr>();
  };
}

ChooseAddress wrap_choose_address(py::function choose) {
  auto held = hold(std::move(choose));
  return [held](int rank, const std::vector<std::string>& addresses) {
    py::gil_scoped_acquire gil;
    return (*held)(rank, addresses).cast<std::string>();
  };
}

std::function<std::string()> wrap_report(py::function report) {
  auto held = hold(std::move(report));
  return [held] {
    py::gil_scoped_acquire gil;
    return (*held)().cast<std::string>();
  };
}

MpiFactory wrap_mpi_loader(py::function loader) {
  auto held = hold(std::move(loader));
  return [held] {
    py::gil_scoped_acquire gil;
    return mpi_api_of((*held)());
  };
}

LoadKernels wrap_kernel_loader(py::function loader) {
  auto held = hold(std::move(loader));
  return [held](int major, int minor) {
    py::gil_scoped_acquire gil;
    return (*held)(major, minor).cast<std::string>();
  };
}

c10::intrusive_ptr<ProcessGroupCGX> make_group(
    const StorePtr& store, int rank, int size, const OptionsPtr& options, py::function make_inner,
    const py::object& make_nccl, py::function load_mpi, py::function load_kernels,
    py::function choose_address, py::function report_addresses, milliseconds timeout,
    const std::string& group_name, const std::string& group_desc,
    std::vector<uint64_t> global_ranks) {
  OptionsPtr own = options ? copy_of(*options) : c10::make_intrusive<Options>();
  own->timeout = timeout;
  own->group_name = group_name;
  own->group_desc = group_desc;
  own->global_ranks_in_group = std::move(global_ranks);
  Factories factories;
  factories.inner = wrap_gloo(std::move(make_inner));
  if (!make_nccl.is_none()) factories.inner_nccl = wrap_factory(make_nccl.cast<py::function>());
  factories.mpi = wrap_mpi_loader(std::move(load_mpi));
  factories.kernels = wrap_kernel_loader(std::move(load_kernels));
  factories.choose_address = wrap_choose_address(std::move(choose_address));
  factories.report_addresses = wrap_report(std::move(report_addresses));
  py::gil_scoped_release no_gil;
  return ProcessGroupCGX::make(store, rank, size, std::move(own), std::move(factories));
}

using OptionalTensor = std::optional<at::Tensor>;

CallOptions call_options(milliseconds timeout, bool async_op, const OptionalTensor& residual,
                         std::optional<uint64_t> step, uint64_t tensor) {
  CallOptions call{timeout, async_op, Bits::kFixed, "", residual.value_or(at::Tensor())};
  if (step) call.key = {*step, tensor};
  return call;
}

c10::intrusive_ptr<c10d::Work> all_reduce_layers(
    ProcessGroupCGX& group, const at::Tensor& tensor, const c10d::ReduceOp& op,
    const std::optional<LayerRequests>& layers, bool async_op, milliseconds timeout, bool tunable,
    const std::string& chosen_by, const OptionalTensor& residual, std::optional<uint64_t> step,
    uint64_t tensor_number, const std::optional<std::vector<uint64_t>>& firsts) {
  std::vector<Layer> given = layers_of(layers.value_or(LayerRequests()));
  if (firsts && firsts->size() != given.size()) {
    throw py::value_error(str_of("firsts has ", firsts->size(),
                                 " numbers; allowed: one for each of ", given.size(), " layers"));
  }
  for (size_t i = 0; firsts && i < firsts->size(); ++i) given[i].first = (*firsts)[i];
  CallOptions call = call_options(timeout, async_op, residual, step, tensor_number);
  call.bits = tunable ? Bits::kTunable : Bits::kFixed;
  call.chosen_by = chosen_by;
  py::gil_scoped_release no_gil;
  if (!layers) return group.all_reduce_as_group(tensor, op, std::move(call));
  return group.all_reduce_layers(tensor, op, std::move(given), call);
}

c10::intrusive_ptr<c10d::Work> reduce_scatter_codec(
    ProcessGroupCGX& group, const at::Tensor& output, const at::Tensor& input,
    const c10d::ReduceOp& op, const OptionalCodec& codec, bool async_op, milliseconds timeout,
    bool as_group, const OptionalTensor& residual, std::optional<uint64_t> step,
    uint64_t tensor_number) {
  CallOptions call = call_options(timeout, async_op, residual, step, tensor_number);
  py::gil_scoped_release no_gil;
  if (as_group) return group.reduce_scatter_as_group(output, input, op, std::move(call));
  return group.reduce_scatter_codec(output, input, op, codec_of(codec), call);
}

c10::intrusive_ptr<c10d::Work> broadcast_codec(ProcessGroupCGX& group, const at::Tensor& tensor,
                                               int64_t root, const OptionalCodec& codec,
                                               bool async_op, milliseconds timeout,
                                               const OptionalTensor& residual,
                                               std::optional<uint64_t> step,
                                               uint64_t tensor_number) {
  const CallOptions call = call_options(timeout, async_op, residual, step, tensor_number);
  return group.broadcast_codec(tensor, root, codec_of(codec), call);
}

c10::intrusive_ptr<c10d::Work> all_to_all_codec(
    ProcessGroupCGX& group, const at::Tensor& output, const at::Tensor& input,
    const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
    const OptionalCodec& codec, bool async_op, milliseconds timeout, const OptionalTensor& residual,
    std::optional<uint64_t> step, uint64_t tensor_number) {
  const CallOptions call = call_options(timeout, async_op, residual, step, tensor_number);
  return group.all_to_all_codec(output, input, output_splits, input_splits, codec_of(codec), call);
}

// The statistics of both engines together.
StatsSnapshot all_stats(ProcessGroupCGX& group) {
  StatsSnapshot all = group.engine().stats().snapshot();
  if (Engine* gpu = group.gpu_engine()) all += gpu->stats().snapshot();
  return all;
}

py::dict stats_of(ProcessGroupCGX& group) {
  Engine& engine = group.engine();
  py::dict out = to_dict(all_stats(group));
  out["communicator"] = engine.communicator();
  Engine* gpu = group.gpu_engine();
  out["cuda_communicator"] = gpu != nullptr ? py::object(py::str(gpu->communicator())) : py::none();
  py::dict engines;
  engines[py::str(engine.communicator())] = to_dict(engine.stats().snapshot());
  if (gpu != nullptr && gpu->communicator() == engine.communicator()) {
    engines[py::str(engine.communicator())] = to_dict(all_stats(group));
  } else if (gpu != nullptr) {
    engines[py::str(gpu->communicator())] = to_dict(gpu->stats().snapshot());
  }
  out["engines"] = engines;
  out["sequence"] = engine.sequence() + (gpu != nullptr ? gpu->sequence() : 0);
  std::array<uint64_t, kDecisions> calls{};
  StatsSnapshot overhead;
  double seconds = 0;
  if (const Autotuner* tuner = group.autotuner()) {
    calls = tuner->calls();
    overhead = tuner->overhead().snapshot();
    seconds = tuner->seconds();
  }
  out["tuned_exact"] = calls[static_cast<size_t>(Decision::kExact)];
  out["tuned_half"] = calls[static_cast<size_t>(Decision::kHalf)];
  out["tuned_asked"] = calls[static_cast<size_t>(Decision::kAsked)];
  out["bytes_sent_tuning"] = overhead.bytes_sent;
  out["seconds_tuning"] = seconds;
  return out;
}

py::object tuning_of(ProcessGroupCGX& group) {
  const Autotuner* tuner = group.autotuner();
  return tuner != nullptr ? py::object(to_dict(tuner->report())) : py::none();
}

void reset_stats(ProcessGroupCGX& group) {
  group.engine().stats().reset();
  if (Engine* gpu = group.gpu_engine()) gpu->stats().reset();
  if (Autotuner* tuner = group.autotuner()) tuner->reset_counters();
}

}  // namespace

void bind_group(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::module_::import("torch.distributed");  // registers the base classes
  register_python_error_translator();
  // Handlers that a program registers later come before this one.
  py::module_::import("atexit").attr("register")(py::cpp_function(&LeftOver::close_all));

  py::class_<Options, OptionsPtr, c10d::Backend::Options> options(m, "Options",
                                                                  options_doc().c_str());
  options.def(py::init(&make_options), "Takes the keywords that the class lists.")
      .def("given", &given, "The settings that were given explicitly, by name.")
      .def("__repr__", &repr)
      .def("__eq__",
           [](const Options& a, const py::object& b) {
             return py::isinstance<Options>(b) && a.fields == b.cast<const Options&>().fields;
           })
      .def("__hash__", [](const Options& o) { return py::hash(py::str(repr(o))); })
      .def("__copy__", &copy_of)
      .def("__deepcopy__", [](const Options& o, const py::dict&) { return copy_of(o); })
      .def("__reduce__", [](const py::object& self) {
        py::object rebuild = py::module_::import("torch_cgx._backend").attr("options_from_dict");
        return py::make_tuple(rebuild, py::make_tuple(given(self.cast<const Options&>())));
      });
  for (const Setting& s : settings()) {
    const auto get = [&s](const Options& o) -> py::object {
      auto text = o.fields.get(s.name);
      return text ? value_of(s, *text) : py::object(py::none());
    };
    options.def_property_readonly(s.name.c_str(), get, s.meaning.c_str());
  }

  m.def(
      "settings_in_force",
      [](const OptionsPtr& options) {
        return settings_in_force(options ? options->fields : OptionFields());
      },
      py::arg("options") = py::none());

  py::class_<ProcessGroupCGX, c10::intrusive_ptr<ProcessGroupCGX>, c10d::Backend>(m,
                                                                                  "ProcessGroupCGX")
      .def(py::init(&make_group), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("options"), py::arg("make_inner"), py::arg("make_nccl"), py::arg("load_mpi"),
           py::arg("load_kernels"), py::arg("choose_address"), py::arg("report_addresses"),
           py::arg("timeout"), py::arg("group_name"), py::arg("group_desc"),
           py::arg("global_ranks"))
      .def("all_reduce_layers", &all_reduce_layers, py::arg("tensor"), py::arg("op"),
           py::arg("layers"), py::arg("async_op") = true, py::arg("timeout") = c10d::kUnsetTimeout,
           py::kw_only(), py::arg("tunable") = false, py::arg("chosen_by") = "",
           py::arg("residual") = py::none(), py::arg("step") = py::none(),
           py::arg("tensor_number") = 0, py::arg("firsts") = py::none())
      .def("reduce_scatter_codec", &reduce_scatter_codec, py::arg("output"), py::arg("input"),
           py::arg("op"), py::arg("codec"), py::arg("async_op") = true,
           py::arg("timeout") = c10d::kUnsetTimeout, py::kw_only(), py::arg("as_group") = false,
           py::arg("residual") = py::none(), py::arg("step") = py::none(),
           py::arg("tensor_number") = 0)
      .def(
          "all_gather_codec",
          [](ProcessGroupCGX& g, const at::Tensor& output, const at::Tensor& input,
             const OptionalCodec& codec, bool async_op, milliseconds timeout, bool as_group,
             const OptionalTensor& residual, std::optional<uint64_t> step, uint64_t tensor_number) {
            const CallOptions call = call_options(timeout, async_op, residual, step, tensor_number);
            if (as_group) return g.all_gather_as_group(output, input, call);
            return g.all_gather_codec(output, input, codec_of(codec), call);
          },
          py::arg("output"), py::arg("input"), py::arg("codec"), py::arg("async_op") = true,
          py::arg("timeout") = c10d::kUnsetTimeout, py::kw_only(), py::arg("as_group") = false,
          py::arg("residual") = py::none(), py::arg("step") = py::none(),
          py::arg("tensor_number") = 0, NoGil())
      .def("moves_encoded", &ProcessGroupCGX::moves_encoded, py::arg("tensor"))
      .def("broadcast_codec", &broadcast_codec, py::arg("tensor"), py::arg("root"),
           py::arg("codec"), py::arg("async_op") = true, py::arg("timeout") = c10d::kUnsetTimeout,
           py::kw_only(), py::arg("residual") = py::none(), py::arg("step") = py::none(),
           py::arg("tensor_number") = 0, NoGil())
      .def("all_to_all_codec", &all_to_all_codec, py::arg("output"), py::arg("input"),
           py::arg("output_splits"), py::arg("input_splits"), py::arg("codec"),
           py::arg("async_op") = true, py::arg("timeout") = c10d::kUnsetTimeout, py::kw_only(),
           py::arg("residual") = py::none(), py::arg("step") = py::none(),
           py::arg("tensor_number") = 0, NoGil())
      .def("stats", &stats_of)
      .def("tuning", &tuning_of)
      .def("reset_stats", &reset_stats)
      .def_property_readonly(
          "options",
          [](ProcessGroupCGX& g) {
            return c10::static_intrusive_pointer_cast<Options>(g.getBackendOptions());
          })
      .def_property_readonly("serial", [](ProcessGroupCGX& g) { return g.context().serial; })
      .def("hosts", [](ProcessGroupCGX& g) { return g.context().hosts; })
      .def("settings",
           [](ProcessGroupCGX& g) { return settings_in_force(g.context().options->fields); })
      .def("wait_for_pending_works", &ProcessGroupCGX::waitForPendingWorks, NoGil())
      .def("split_group", &ProcessGroupCGX::split, py::arg("store"), py::arg("ranks"),
           py::arg("options"), NoGil());
}

}  // namespace cgx
