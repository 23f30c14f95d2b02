#include "backend/work/flight_record.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace cgx {
namespace {

constexpr size_t kDefaultEntries = 2000;  // torch's own

size_t capacity_from_environment() {
  for (const char* variable : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') continue;
    size_t entries = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, entries);
    TORCH_CHECK_VALUE(error == std::errc() && stop == end, "cgx: ", variable, "='", text,
                      "' is not allowed; the number of entries of the flight record is 0 or more");
    return entries;
  }
  return kDefaultEntries;
}

}  // namespace

FlightRecord& FlightRecord::instance() {
  static auto* record = new FlightRecord;
  return *record;
}

FlightRecord::FlightRecord() : capacity_(capacity_from_environment()) {}

void FlightRecord::add(CallRecordPtr record) {
  CallRecordPtr dropped;  // destroyed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  ++added_;
  records_.push_back(std::move(record));
  if (records_.size() > capacity_) {
    dropped = std::move(records_.front());
    records_.pop_front();
  }
}

std::vector<std::pair<size_t, CallRecordPtr>> FlightRecord::entries() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<size_t, CallRecordPtr>> out;
  size_t number = added_ - records_.size();
  for (const CallRecordPtr& record : records_) out.emplace_back(number++, record);
  return out;
}

}  // namespace cgx
