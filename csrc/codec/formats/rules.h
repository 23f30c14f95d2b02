// The constants of a rounding (rule.h), from a format and how values become its numbers.
#pragma once

#include "codec/formats/codes.h"
#include "codec/formats/fixed.h"
#include "codec/formats/format.h"
#include "codec/formats/rule.h"

namespace cgx::formats {

Kind kind_of(const Casting& casting);
Kind kind_of(const Fixed& fixed);

/// Of kCpd only Rule<float> counts: CPD knew no other type.
template <typename Real>
Rule<Real> rule_of(const Casting& casting);

/// Numbers in fixed point are multiples of one quantum, as a format's numbers are below its least normal one.
template <typename Real>
Rule<Real> rule_of(const Fixed& fixed);

/// Of a format with a sign.
CodeRule code_rule_of(const Format& format);

}  // namespace cgx::formats
