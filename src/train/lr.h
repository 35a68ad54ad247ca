// Learning-rate schedules. Step k counts from 0, N steps in all, W of them warm-up.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace llmops {

enum class LrShape : uint8_t { constant, linear, cosine, wsd };
std::string_view name_of(LrShape shape);

struct LrSchedule {
  LrShape shape = LrShape::cosine;
  double lr = 1e-3;
  double lr_min = 0;           // reached at the end (constant: unused)
  int64_t warmup_steps = 0;    // W
  int64_t steps = 1;           // N
  double decay_fraction = 0.2;  // wsd: the last part of N, in which lr falls by 1 - sqrt(x)
};

// k < W: lr (k+1)/W, as in llm.c (nanoGPT divides by W+1). Then with x = (k-W)/(N-W): cosine lr_min + (lr-lr_min)(1+cos(pi x))/2,
// linear lr + (lr_min-lr) x, wsd constant until the last decay_fraction of N, then lr_min + (lr-lr_min)(1-sqrt(y)).
double learning_rate(const LrSchedule& schedule, int64_t step);

}  // namespace llmops
