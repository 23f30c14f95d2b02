#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/in_process.h"
#include "comm/relay/relay.h"
#include "comm/shm/communicator.h"
#include "machinery/bindings.h"
#include "machinery/mock_network.h"
#include "machinery/python.h"
#include "machinery/slot_access.h"
#include "machinery/stress.h"

namespace py = pybind11;

namespace cgx {

namespace {

using Sizes = std::vector<size_t>;

/// A communicator that Python may close before it is collected. A call under way keeps it alive.
class Handle {
 public:
  explicit Handle(std::unique_ptr<Communicator> comm) : comm_(std::move(comm)) {}

  std::shared_ptr<Communicator> get() const {
    if (!comm_) throw ConfigError("the communicator is closed");
    return comm_;
  }
  void close() {
    std::shared_ptr<Communicator> comm = std::move(comm_);
    py::gil_scoped_release released;
    comm.reset();
  }
  SlotExchange& slots() const {
    auto* exchange = dynamic_cast<SlotExchange*>(get().get());
    if (exchange == nullptr) throw ConfigError(str_of(get()->name(), " has no slots"));
    return *exchange;
  }

 private:
  std::shared_ptr<Communicator> comm_;
};

using Handles = std::vector<std::unique_ptr<Handle>>;

void open_messages(const Handle& handle, const std::vector<py::bytes>& messages, double timeout) {
  std::shared_ptr<Communicator> comm = handle.get();
  std::vector<std::string> contents(messages.begin(), messages.end());
  Sizes bytes_to;
  for (const std::string& content : contents) bytes_to.push_back(content.size());
  py::gil_scoped_release released;
  std::vector<std::byte*> buffers;
  comm->open(bytes_to, buffers, deadline_of(timeout));
  for (size_t peer = 0; peer < buffers.size(); ++peer) {
    if (buffers[peer] != nullptr)
      std::memcpy(buffers[peer], contents[peer].data(), contents[peer].size());
  }
}

void open_broadcast(const Handle& handle, const std::string& message, double timeout) {
  std::shared_ptr<Communicator> comm = handle.get();
  py::gil_scoped_release released;
  std::byte* buffer = comm->open_broadcast(message.size(), deadline_of(timeout));
  if (buffer != nullptr) std::memcpy(buffer, message.data(), message.size());
}

py::bytes receive(const Handle& handle, int peer, double timeout) {
  std::shared_ptr<Communicator> comm = handle.get();
  Message message;
  {
    py::gil_scoped_release released;
    message = comm->receive(peer, deadline_of(timeout));
  }
  return {reinterpret_cast<const char*>(message.data), message.bytes};
}

std::unique_ptr<Handle> make_shm(py::function set, py::function get, int rank, int size,
                                 size_t slot_bytes, double timeout) {
  PyRendezvous rendezvous(std::move(set), std::move(get));
  std::unique_ptr<Communicator> comm;
  {
    py::gil_scoped_release released;
    comm = make_shm_communicator(rendezvous, rank, size, slot_bytes, deadline_of(timeout));
  }
  return std::make_unique<Handle>(std::move(comm));
}

Handles make_in_process(int size, size_t slot_bytes, int slots) {
  Handles handles;
  for (auto& comm : make_in_process_group(size, slot_bytes, slots)) {
    handles.push_back(std::make_unique<Handle>(std::move(comm)));
  }
  return handles;
}

Handles make_relays(MockNetwork& network, int size, size_t capacity) {
  Handles handles;
  for (int rank = 0; rank < size; ++rank) {
    handles.push_back(
        std::make_unique<Handle>(make_relay_communicator(network.endpoint(rank), capacity)));
  }
  return handles;
}

uint64_t stress(const std::vector<Handle*>& handles, int exchanges, uint64_t seed, size_t max_bytes,
                double timeout, int call_length) {
  std::vector<std::shared_ptr<Communicator>> held;
  std::vector<Communicator*> group;
  for (const Handle* handle : handles) {
    held.push_back(handle->get());
    group.push_back(held.back().get());
  }
  py::gil_scoped_release released;
  return stress_group(group, {exchanges, seed, max_bytes, timeout, call_length});
}

void bind_handle(py::module_& module) {
  py::class_<Handle>(module, "Communicator")
      .def_property_readonly("rank", [](const Handle& self) { return self.get()->rank(); })
      .def_property_readonly("size", [](const Handle& self) { return self.get()->size(); })
      .def_property_readonly("name", [](const Handle& self) { return self.get()->name(); })
      .def_property_readonly("capacity", [](const Handle& self) { return self.get()->capacity(); })
      .def_property_readonly("frame_bytes",
                             [](const Handle& self) { return self.get()->frame_bytes(); })
      .def_property_readonly("staging_bytes",
                             [](const Handle& self) { return self.get()->staging_bytes(); })
      .def(
          "expect",
          [](const Handle& self, const std::vector<int>& peers, size_t bytes) {
            std::shared_ptr<Communicator> comm = self.get();
            py::gil_scoped_release released;
            for (int peer : peers) comm->expect(peer, bytes);
          },
          py::arg("peers"), py::arg("bytes") = 0)
      .def("begin_call", [](const Handle& self) { self.get()->begin_call(); })
      .def_property_readonly("in_flight",
                             [](const Handle& self) { return self.get()->in_flight(); })
      .def(
          "peek",
          [](const Handle& self, int peer, double timeout) {
            std::shared_ptr<Communicator> comm = self.get();
            Message message;
            {
              py::gil_scoped_release released;
              message = comm->peek(peer, deadline_of(timeout));
            }
            return py::bytes(reinterpret_cast<const char*>(message.data), message.bytes);
          },
          py::arg("peer"), py::arg("timeout") = 30.0)
      .def("open", &open_messages, py::arg("messages"), py::arg("timeout") = 30.0)
      .def("open_broadcast", &open_broadcast, py::arg("message"), py::arg("timeout") = 30.0)
      .def(
          "open_sizes",
          [](const Handle& self, const Sizes& bytes_to, double timeout) {
            std::shared_ptr<Communicator> comm = self.get();
            std::vector<std::byte*> buffers;
            py::gil_scoped_release released;
            comm->open(bytes_to, buffers, deadline_of(timeout));
          },
          py::arg("bytes_to"), py::arg("timeout") = 30.0)
      .def(
          "post",
          [](const Handle& self, double timeout) {
            std::shared_ptr<Communicator> comm = self.get();
            py::gil_scoped_release released;
            comm->post(deadline_of(timeout));
          },
          py::arg("timeout") = 30.0)
      .def(
          "flush",
          [](const Handle& self, double timeout) {
            std::shared_ptr<Communicator> comm = self.get();
            py::gil_scoped_release released;
            comm->flush(deadline_of(timeout));
          },
          py::arg("timeout") = 30.0)
      .def("receive", &receive, py::arg("peer"), py::arg("timeout") = 30.0)
      .def("release",
           [](const Handle& self, int peer) {
             std::shared_ptr<Communicator> comm = self.get();
             py::gil_scoped_release released;
             comm->release(peer);
           })
      .def("abort",
           [](const Handle& self, const std::string& reason) {
             std::shared_ptr<Communicator> comm = self.get();
             py::gil_scoped_release released;
             comm->abort({FailureKind::kAborted, reason});
           })
      .def("close", &Handle::close)
      .def("damage",
           [](const Handle& self, int to, uint64_t offset, uint64_t bytes, uint64_t posted) {
             SlotExchangeTestAccess::announce(self.slots(), to, offset, bytes, posted);
           })
      .def("damage_released", [](const Handle& self, int from, uint64_t released) {
        SlotExchangeTestAccess::seen(self.slots(), from).released = released;
      });
}

}  // namespace

void bind_communicators(py::module_& module) {
  bind_handle(module);
  py::class_<MockNetwork>(module, "MockNetwork")
      .def(py::init<int>(), py::arg("size"))
      .def("set_delay",
           [](MockNetwork& self, int microseconds, uint64_t seed) {
             self.set_delay(std::chrono::microseconds(microseconds), seed);
           })
      .def("set_lazy", &MockNetwork::set_lazy)
      .def("set_tags", &MockNetwork::set_tags)
      .def("forge_length", &MockNetwork::forge_length)
      .def("fail_after", &MockNetwork::fail_after)
      .def("receives", &MockNetwork::receives)
      .def_property_readonly("overruns", &MockNetwork::overruns);
  module.def("make_in_process_group", &make_in_process, py::arg("size"), py::arg("slot_bytes"),
             py::arg("slots") = 2);
  module.def("make_shm_communicator", &make_shm, py::arg("set"), py::arg("get"), py::arg("rank"),
             py::arg("size"), py::arg("slot_bytes"), py::arg("timeout") = 30.0);
  module.def("make_relay_group", &make_relays, py::arg("network"), py::arg("size"),
             py::arg("capacity"));
  module.def("stress", &stress, py::arg("comms"), py::arg("exchanges"), py::arg("seed") = 0,
             py::arg("max_bytes") = 65536, py::arg("timeout") = 60.0, py::arg("call_length") = 0);
}

}  // namespace cgx
