#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/tuning.h"
#include "machinery/bindings.h"
#include "reduce/schedule/pipeline.h"
#include "reduce/schedule/team_all_reduce.h"
#include "reduce/tuning/decision.h"
#include "reduce/tuning/shared_clock.h"
#include "reduce/tuning/tuned_class.h"

namespace py = pybind11;

namespace cgx {

namespace {

Seconds seconds_of(const py::dict& seconds) {
  Seconds out;
  for (Decision decision : kAllDecisions) {
    const char* key = key_of(decision);
    out[static_cast<size_t>(decision)] = seconds.contains(key) ? seconds[key].cast<double>() : -1;
  }
  return out;
}

Algorithm algorithm_of(const std::string& text) {
  if (text == "oneshot") return Algorithm::kOneShot;
  if (text == "sra") return Algorithm::kScatterReduceAllGather;
  if (text == "ring") return Algorithm::kRing;
  throw ConfigError(str_of("algorithm='", text, "' is not allowed; one of oneshot, sra, ring"));
}

void bind_pipeline(py::module_& m) {
  m.def(
      "pipeline_steps",
      [](size_t rounds, int stages, size_t depth) {
        std::vector<std::pair<int, size_t>> steps;
        for_each_step(rounds, stages, depth,
                      [&](int stage, size_t round) { steps.emplace_back(stage, round); });
        return steps;
      },
      py::arg("rounds"), py::arg("stages"), py::arg("depth"));
  m.def(
      "pipeline_depth",
      [](const std::string& algorithm, int size, int in_flight) {
        const TeamAlgorithm& chosen = team_algorithm(algorithm_of(algorithm));
        return std::make_pair(chosen.stages(size), chosen.depth(size, in_flight));
      },
      py::arg("algorithm"), py::arg("size"), py::arg("in_flight"));
}

void bind_decisions(py::module_& m) {
  m.def(
      "tuning_fastest",
      [](const py::dict& seconds) { return key_of(fastest(seconds_of(seconds))); },
      py::arg("seconds"));
}

using ByRank = std::vector<std::pair<int64_t, int64_t>>;

void bind_clock(py::module_& m) {
  const auto spans = [](const ByRank& by_rank) {
    std::vector<Span> out;
    for (const auto& [begin, end] : by_rank) out.push_back({begin, end});
    return out;
  };
  py::class_<SharedClock>(m, "SharedClock", "How long calls took a group.")
      .def(py::init<int, bool>(), py::arg("size"), py::arg("one_clock"))
      .def("meet",
           [spans](SharedClock& clock, const ByRank& by_rank) { clock.meet(spans(by_rank)); })
      .def("seconds", [spans](const SharedClock& clock, const ByRank& by_rank) {
        return clock.seconds(spans(by_rank));
      });
  m.def("pack_span", [](int64_t begin, int64_t end) {
    std::vector<float> numbers;
    pack({begin, end}, numbers);
    return numbers;
  });
  m.def("unpack_span", [](const std::vector<float>& numbers) {
    if (numbers.size() != kFloatsPerSpan) throw ConfigError("a span is 4 numbers");
    const Span span = unpack_span(numbers.data());
    return std::make_pair(span.begin, span.end);
  });
}

void bind_classes(py::module_& m) {
  m.attr("TUNING_RACE_CALLS") = TunedClass::kRaceCalls;
  m.attr("TUNING_LEAST_PAUSE") = TunedClass::kLeastPause;
  m.attr("TUNING_CALLS_PER_LOSS") = TunedClass::kCallsPerLoss;
  py::class_<TunedClass>(m, "TunedClass", "The schedule of one class of messages.")
      .def(py::init([](const std::vector<std::string>& names) {
             Available available;
             for (Decision decision : kAllDecisions) {
               available[static_cast<size_t>(decision)] =
                   std::find(names.begin(), names.end(), key_of(decision)) != names.end();
             }
             return TunedClass(available);
           }),
           py::arg("available"))
      .def("next",
           [](TunedClass& tuned) {
             const TunedClass::Turn turn = tuned.next();
             return std::make_pair(key_of(turn.decision), turn.sample);
           })
      .def("record", [](TunedClass& tuned, int sample, int64_t begin,
                        int64_t end) { tuned.record(sample, {begin, end}); })
      .def_property_readonly("due", &TunedClass::due)
      .def("spans",
           [](const TunedClass& tuned) {
             ByRank out;
             for (const Span& span : tuned.spans()) out.emplace_back(span.begin, span.end);
             return out;
           })
      .def("renew", &TunedClass::renew)
      .def_property_readonly("choice",
                             [](const TunedClass& tuned) { return key_of(tuned.decision()); })
      .def_property_readonly("measured",
                             [](const TunedClass& tuned) { return by_decision(tuned.measured()); })
      .def_property_readonly("renewals", &TunedClass::renewals);
}

}  // namespace

void bind_schedules(py::module_& m) {
  bind_pipeline(m);
  bind_decisions(m);
  bind_clock(m);
  bind_classes(m);
}

}  // namespace cgx
