// Log lines on stderr. Thread-safe: a line is one write.
#pragma once

#include <cstdint>
#include <string>

namespace cgx {

enum class LogLevel : uint8_t { kOff = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

/// Writes "[cgx] text"; the caller has checked the level. Never fails: a line is lost where stderr
/// is closed, full or broken, or where another file has got its number since it was closed.
void log_line(const std::string& text);

/// No line is written from now on: the process was started without stderr, so that its number
/// belongs to whichever file was opened first.
void log_nothing();

}  // namespace cgx
