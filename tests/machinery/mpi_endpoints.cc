#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "bindings/mpi.h"
#include "comm/mpi/api.h"
#include "comm/mpi/point_to_point.h"
#include "comm/relay/relay.h"
#include "machinery/bindings.h"
#include "machinery/python.h"
#include "machinery/stress.h"

namespace py = pybind11;

namespace cgx {
namespace {

/// A message under way, with its memory.
class Transfer {
 public:
  /// Its memory lives until `communicator` is destroyed, which this does last.
  std::shared_ptr<PointToPoint> communicator;
  std::shared_ptr<std::string> data;
  std::unique_ptr<Pending> pending;

  py::bytes wait(double timeout) {
    {
      py::gil_scoped_release released;
      pending->wait(deadline_of(timeout));
    }
    return py::bytes(*data);
  }
};

/// A PointToPoint for Python. Calls under way keep it alive. Memory of messages is kept for good:
/// a real owner (the relay) knows when it may go.
class Endpoint {
 public:
  explicit Endpoint(std::shared_ptr<PointToPoint> communicator)
      : communicator_(std::move(communicator)) {}

  std::shared_ptr<PointToPoint> get() const {
    if (!communicator_) throw ConfigError("the endpoint is closed");
    return communicator_;
  }

  std::unique_ptr<Transfer> send(int peer, int tag, const std::string& data) {
    return start(data, [&](PointToPoint& communicator, std::byte* memory, size_t bytes) {
      return communicator.send(peer, tag, memory, bytes);
    });
  }

  std::unique_ptr<Transfer> receive(int peer, int tag, size_t bytes) {
    return start(std::string(bytes, '\0'),
                 [&](PointToPoint& communicator, std::byte* memory, size_t size) {
                   return communicator.receive(peer, tag, memory, size);
                 });
  }

  void abort(const std::string& reason) {
    auto communicator = get();
    py::gil_scoped_release released;
    communicator->abort(reason);
  }

  uint64_t stress(int exchanges, uint64_t seed, size_t max_bytes, size_t capacity, double timeout) {
    auto communicator = get();
    py::gil_scoped_release released;
    auto comm = make_relay_communicator(std::move(communicator), capacity);
    const uint64_t checked = stress_rank(*comm, {exchanges, seed, max_bytes, timeout});
    comm->flush(deadline_of(timeout));
    return checked;
  }

  /// Is anything, here or in MPI, still using it?
  bool close() {
    std::weak_ptr<PointToPoint> left = communicator_;
    {
      py::gil_scoped_release released;
      communicator_.reset();
    }
    return !left.expired();
  }

 private:
  template <typename Post>
  std::unique_ptr<Transfer> start(const std::string& contents, Post post) {
    auto made = std::make_unique<Transfer>();
    made->communicator = get();
    auto* kept = new std::shared_ptr<std::string>(std::make_shared<std::string>(contents));
    made->data = *kept;
    auto* memory = reinterpret_cast<std::byte*>(made->data->data());
    py::gil_scoped_release released;
    made->pending = post(*made->communicator, memory, made->data->size());
    return made;
  }

  std::shared_ptr<PointToPoint> communicator_;
};

std::unique_ptr<Endpoint> make_endpoint(const py::object& api, py::function set, py::function get,
                                        int rank, int size, double timeout, size_t part_bytes) {
  // The tests' own table comes as an address.
  const void* table = py::isinstance<py::int_>(api)
                          ? reinterpret_cast<const void*>(api.cast<uintptr_t>())
                          : mpi_api_of(api);
  PyRendezvous rendezvous(std::move(set), std::move(get));
  std::shared_ptr<PointToPoint> made;
  {
    py::gil_scoped_release released;
    made = make_mpi_point_to_point(static_cast<const CgxMpiApi*>(table), rendezvous, rank, size,
                                   deadline_of(timeout), {part_bytes});
  }
  return std::make_unique<Endpoint>(std::move(made));
}

}  // namespace

void bind_mpi_endpoints(py::module_& module) {
  py::class_<Transfer>(module, "MpiTransfer")
      .def("done", [](Transfer& self) { return self.pending->done(); })
      .def("wait", &Transfer::wait, py::arg("timeout") = 30.0)
      .def("drop", [](Transfer& self) {
        py::gil_scoped_release released;
        self.pending.reset();
        self.communicator.reset();
      });
  py::class_<Endpoint>(module, "MpiEndpoint")
      .def_property_readonly("rank", [](const Endpoint& self) { return self.get()->rank(); })
      .def_property_readonly("size", [](const Endpoint& self) { return self.get()->size(); })
      .def_property_readonly("name", [](const Endpoint& self) { return self.get()->name(); })
      .def("send", &Endpoint::send, py::arg("peer"), py::arg("tag"), py::arg("data"))
      .def("receive", &Endpoint::receive, py::arg("peer"), py::arg("tag"), py::arg("bytes"))
      .def("abort", &Endpoint::abort, py::arg("reason"))
      .def("stress", &Endpoint::stress, py::arg("exchanges"), py::arg("seed") = 0,
           py::arg("max_bytes") = 65536, py::arg("capacity") = 1 << 20, py::arg("timeout") = 60.0)
      .def("close", &Endpoint::close);
  module.def("make_mpi_endpoint", &make_endpoint, py::arg("api"), py::arg("set"), py::arg("get"),
             py::arg("rank"), py::arg("size"), py::arg("timeout") = 30.0,
             py::arg("part_bytes") = MpiOptions().part_bytes);
}

}  // namespace cgx
