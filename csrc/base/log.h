// Log lines on stderr. Thread-safe: a line is one write.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>

namespace cgx {

enum class LogLevel : uint8_t { kOff = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

/// Writes "[cgx] text"; the caller has checked the level.
inline void log_line(const std::string& text) {
  const std::string line = "[cgx] " + text + "\n";
  // A closed or full stderr is not an error.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace cgx
