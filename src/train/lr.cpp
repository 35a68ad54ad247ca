#include "train/lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llmops {

std::string_view name_of(LrShape shape) {
  constexpr std::string_view kNames[] = {"constant", "linear", "cosine", "wsd"};
  return kNames[static_cast<int>(shape)];
}

double learning_rate(const LrSchedule& s, int64_t step) {
  if (step < s.warmup_steps) return s.lr * static_cast<double>(step + 1) / static_cast<double>(s.warmup_steps);
  const double rest = static_cast<double>(std::max<int64_t>(1, s.steps - s.warmup_steps));
  const double x = std::min(1.0, static_cast<double>(step - s.warmup_steps) / rest);
  switch (s.shape) {
    case LrShape::constant: return s.lr;
    case LrShape::linear: return s.lr + (s.lr_min - s.lr) * x;
    case LrShape::cosine: return s.lr_min + (s.lr - s.lr_min) * 0.5 * (1 + std::cos(std::numbers::pi * x));
    case LrShape::wsd: break;
  }
  const double start = static_cast<double>(s.steps) * (1 - s.decay_fraction);
  const double y = (static_cast<double>(step) - start) / std::max(1.0, static_cast<double>(s.steps) - start);
  return y <= 0 ? s.lr : s.lr_min + (s.lr - s.lr_min) * (1 - std::sqrt(std::min(1.0, y)));
}

}  // namespace llmops
