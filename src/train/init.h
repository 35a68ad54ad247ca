// Initial weights as a function of (seed, tensor name, element): the same for every layout, rank count, device and machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "layout/tensors.h"

namespace llmops {

// Standard normal by inversion of the cumulative distribution (M. J. Wichura, AS 241, PPND16) with only + - * / and sqrt on
// doubles, so that every machine gives the same bits. 0 < p < 1.
double normal_quantile(double p);

// out[0..count) = elements [begin, begin + count) of the tensor's initial value, row-major over its whole shape.
void initial_values(const LogicalTensor& tensor, uint64_t seed, int64_t begin, int64_t count, float* out);

}  // namespace llmops
