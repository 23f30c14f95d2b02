#include "bindings/diagnostics.h"

#include <pybind11/stl.h>

#include <string>

#include "backend/work/flight_record.h"
#include "comm/hooks.h"

namespace py = pybind11;

namespace cgx {
namespace {

py::list names_of(const std::vector<at::ScalarType>& types) {
  py::list names;
  for (at::ScalarType type : types) names.append(c10::toString(type));
  return names;
}

const char* text_of(CallRecord::State state) {
  switch (state) {
    case CallRecord::State::kScheduled:
      return "scheduled";
    case CallRecord::State::kStarted:
      return "started";
    case CallRecord::State::kCompleted:
      return "completed";
    case CallRecord::State::kFailed:
      return "failed";
  }
  return "unknown";
}

// Keys and units of torch's own flight recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp,
// version 2.10), then the keys that only cgx has.
py::dict entry_of(size_t id, const CallRecord& record) {
  const CallRecord::Progress now = record.progress();
  const bool alone = record.shape.point_to_point();
  py::dict entry;
  entry["record_id"] = id;
  entry["pg_id"] = record.group->serial;
  entry["process_group"] = py::make_tuple(record.group->name, record.group->description);
  entry["collective_seq_id"] = alone ? 0 : record.number;
  entry["p2p_seq_id"] = alone ? record.number : 0;
  entry["op_id"] = record.number;
  entry["is_p2p"] = alone;
  entry["profiling_name"] = std::string("cgx:") + name_of(record.shape.op);
  entry["input_sizes"] = record.shapes.input_sizes();
  entry["input_dtypes"] = names_of(record.shapes.input_types());
  entry["output_sizes"] = record.shapes.output_sizes();
  entry["output_dtypes"] = names_of(record.shapes.output_types());
  // torch has no word for failed; its readers take a retired entry that is not completed for that.
  entry["state"] = record.state() == CallRecord::State::kFailed ? "started" : text_of(now.state);
  entry["retired"] = record.over();
  entry["time_created_ns"] = record.created_unix_ns;
  entry["time_discovered_started_ns"] = now.started_unix_ns;
  entry["time_discovered_completed_ns"] =
      now.state == CallRecord::State::kCompleted ? now.ended_unix_ns : 0;
  if (record.over()) entry["duration_ms"] = now.milliseconds;
  entry["timeout_ms"] = record.timeout.count();
  entry["frames"] = py::list();
  entry["way"] = now.way;
  if (now.plan) {
    entry["bytes_before_compression"] = now.bytes_before;
    entry["bytes_sent"] = now.bytes_after;
  }
  if (!now.error.empty()) entry["error"] = now.error;
  return entry;
}

}  // namespace

void bind_diagnostics(py::module_& m) {
  m.def("flight_record", [] {
    py::list entries;
    for (const auto& [id, record] : FlightRecord::instance().entries()) {
      entries.append(entry_of(id, *record));
    }
    return entries;
  });
  // For tests/machinery.
  m.attr("_communicator_hook") = py::capsule(&communicator_hook(), kCommunicatorHookCapsule);
}

}  // namespace cgx
