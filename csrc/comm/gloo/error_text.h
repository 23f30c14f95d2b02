// Error texts of torch and Gloo, without the parts that do not help the user.
#pragma once

#include <exception>
#include <string>

namespace cgx {

/// The text of an exception without the stack, without the place in Gloo's sources in front, and
/// without Gloo's advice behind.
std::string plain_text(const std::exception& error);

}  // namespace cgx
