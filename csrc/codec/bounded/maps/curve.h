// The predictor of smooth values: a cubic curve through every 256 of them.
//
// A curve is given by its values at four nodes, 64 places apart, in whole 64ths of a step. So nodes
// follow each other at equal distances through the whole block; their second differences are small,
// and are what is written. The curve's value at a place is a sum of four products, in an order that
// is part of the format, so that every machine computes the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/bounded/kinds.h"

namespace cgx::bounded {

struct CurveTables {
  // Lagrange's polynomials of the nodes: what node k adds at place i.
  double draw[kCurveNodes][kCurveRun];
  // What place i adds to node k of the cubic of least squares.
  double fit[kCurveNodes][kCurveRun];
};
const CurveTables& curve_tables();

/// Bytes of the nodes of n values: second differences in 32 bits, a plane for each byte of them.
size_t curve_bytes(size_t n);

/// Nodes of the curve that fits n <= kCurveRun positions (values / step) best in the sense of least
/// squares. False: a node is out of range, or a position is not finite.
bool fit_curve(const double* positions, size_t n, int32_t* nodes);

/// The curve's values, in steps, at n <= kCurveRun places.
void draw_curve(const int32_t* nodes, size_t n, double* out);

/// Nodes of all runs of n values to and from curve_bytes(n) bytes. False: one of them is beyond
/// kMostNode, as no writer's is.
void write_nodes(const int32_t* nodes, size_t n, std::byte* out);
bool read_nodes(const std::byte* in, size_t n, int32_t* nodes);

}  // namespace cgx::bounded
