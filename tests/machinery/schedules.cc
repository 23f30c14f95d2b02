#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/tuning.h"
#include "machinery/bindings.h"
#include "reduce/schedule/pipeline.h"
#include "reduce/schedule/team_all_reduce.h"
#include "reduce/tuning/cost_model.h"
#include "reduce/tuning/shared_clock.h"
#include "reduce/tuning/tuned_class.h"

namespace py = pybind11;

namespace cgx {

namespace {

Estimates estimates_of(const py::dict& seconds) {
  Estimates out;
  for (Decision decision : kAllDecisions) {
    const char* key = key_of(decision);
    out[static_cast<size_t>(decision)] = seconds.contains(key) ? seconds[key].cast<double>() : -1;
  }
  return out;
}

MessageCost cost_of(const py::dict& given) {
  const auto get = [&given](const char* key, double fallback) {
    return given.contains(key) ? given[key].cast<double>() : fallback;
  };
  MessageCost cost;
  cost.steps = get("steps", 1);
  cost.bytes = get("bytes", 0);
  cost.values = get("values", 0);
  cost.encoded = get("encoded", 0);
  cost.decoded = get("decoded", 0);
  cost.rounds = get("rounds", 1);
  cost.compressed = get("compressed", 0);
  return cost;
}

CodecCost codec_of(const std::pair<double, double>& seconds) {
  return {seconds.first, seconds.second};
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

void bind_models(py::module_& m) {
  m.def(
      "tuning_predict",
      [](const py::dict& link, const py::dict& cost, const std::pair<double, double>& codec,
         const std::pair<double, double>& raw) {
        const LinkModel model{link["latency"].cast<double>(),
                              link["seconds_per_byte"].cast<double>(),
                              link["seconds_per_value"].cast<double>()};
        return predict(model, cost_of(cost), codec_of(codec), codec_of(raw));
      },
      py::arg("link"), py::arg("cost"), py::arg("codec"), py::arg("raw"));
  m.def(
      "tuning_fit",
      [](const std::pair<py::dict, double>& small, const std::pair<py::dict, double>& exact,
         const std::pair<py::dict, double>& asked, const std::pair<double, double>& codec,
         const std::pair<double, double>& raw) {
        const LinkProbes probes{cost_of(small.first), cost_of(exact.first), cost_of(asked.first),
                                small.second,         exact.second,         asked.second};
        return to_dict(fit_link(probes, codec_of(codec), codec_of(raw)));
      },
      py::arg("small"), py::arg("exact"), py::arg("asked"), py::arg("codec"), py::arg("raw"));
  m.def(
      "tuning_fastest",
      [](const py::dict& seconds) { return key_of(fastest(estimates_of(seconds))); },
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
      .def(py::init([](const py::dict& predicted) { return TunedClass(estimates_of(predicted)); }),
           py::arg("predicted"))
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
  bind_models(m);
  bind_clock(m);
  bind_classes(m);
}

}  // namespace cgx
