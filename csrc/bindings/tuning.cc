#include "bindings/tuning.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace py = pybind11;

namespace cgx {
namespace {

constexpr const char* kKeys[kChoices] = {"exact", "half", "asked"};

py::dict by_choice(const Estimates& seconds) {
  py::dict out;
  for (size_t i = 0; i < kChoices; ++i) {
    if (seconds[i] >= 0) out[kKeys[i]] = seconds[i];
  }
  return out;
}

Estimates estimates_of(const py::dict& seconds) {
  Estimates out;
  for (size_t i = 0; i < kChoices; ++i) {
    out[i] = seconds.contains(kKeys[i]) ? seconds[kKeys[i]].cast<double>() : -1;
  }
  return out;
}

const char* key_of(Choice choice) { return kKeys[static_cast<size_t>(choice)]; }

Choice choice_of(const std::string& key) {
  for (Choice choice : kAllChoices) {
    if (key == key_of(choice)) return choice;
  }
  throw ConfigError(str_of("choice='", key, "' is not one of exact, half, asked"));
}

const char* text_of(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}

py::dict to_dict(const LinkModel& link) {
  py::dict out;
  out["latency"] = link.latency;
  out["seconds_per_byte"] = link.seconds_per_byte;
  out["seconds_per_value"] = link.seconds_per_value;
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

}  // namespace

py::dict to_dict(const TuningReport& report) {
  py::dict codecs;
  for (const auto& row : report.codecs) {
    py::dict one;
    one["encode"] = row.seconds_per_value.encode;
    one["decode"] = row.seconds_per_value.decode;
    codecs[py::str(row.codec)] = one;
  }
  py::list sizes;
  for (const auto& row : report.sizes) {
    py::dict one;
    one["bytes"] = row.bytes;
    one["predicted"] = by_choice(row.predicted);
    one["choice"] = key_of(row.choice);
    sizes.append(one);
  }
  py::list classes;
  for (const auto& row : report.classes) {
    py::dict one;
    one["operation"] = name_of(row.operation);
    one["dtype"] = text_of(row.dtype);
    one["bytes"] = row.bytes;
    one["codec"] = row.codec;
    one["predicted"] = by_choice(row.predicted);
    one["measured"] = by_choice(row.measured);
    one["choice"] = key_of(row.choice);
    one["calls"] = row.calls;
    one["renewals"] = row.renewals;
    classes.append(one);
  }
  py::dict out;
  out["measurements"] = report.measurements;
  out["seconds"] = report.seconds;
  out["link"] = to_dict(report.link);
  out["codecs"] = codecs;
  out["table"] = sizes;
  out["classes"] = classes;
  return out;
}

void bind_tuning(py::module_& m) {
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

  using ByRank = std::vector<std::pair<int64_t, int64_t>>;
  const auto spans = [](const ByRank& by_rank) {
    std::vector<Span> out;
    for (const auto& [begin, end] : by_rank) out.push_back({begin, end});
    return out;
  };
  py::class_<SharedClock>(m, "SharedClock", "How long calls took a group; for tests.")
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

  m.attr("TUNING_RACE_CALLS") = TunedClass::kRaceCalls;
  m.attr("TUNING_LEAST_PAUSE") = TunedClass::kLeastPause;
  m.attr("TUNING_CALLS_PER_LOSS") = TunedClass::kCallsPerLoss;
  py::class_<TunedClass>(m, "TunedClass", "The schedule of one class of messages; for tests.")
      .def(py::init([](const py::dict& predicted) { return TunedClass(estimates_of(predicted)); }),
           py::arg("predicted"))
      .def("next",
           [](TunedClass& tuned) {
             const TunedClass::Pick turn = tuned.next();
             return std::make_pair(key_of(turn.choice), turn.sample);
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
                             [](const TunedClass& tuned) { return key_of(tuned.choice()); })
      .def_property_readonly("measured",
                             [](const TunedClass& tuned) { return by_choice(tuned.measured()); })
      .def_property_readonly("renewals", &TunedClass::renewals);
}

}  // namespace cgx
