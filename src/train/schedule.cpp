#include "train/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orchard::train {

double peak_learning_rate(const config::OptimizerConfig& optimizer, std::int64_t batch_size) {
  return optimizer.lr_batch_size == 0 ? optimizer.lr
                                      : optimizer.lr * static_cast<double>(batch_size) /
                                            static_cast<double>(optimizer.lr_batch_size);
}

double learning_rate(const config::ScheduleConfig& schedule, double peak_lr, std::int64_t step,
                     std::int64_t steps_per_epoch, std::int64_t total_steps) {
  const auto at = static_cast<double>(step);
  const double warmup_steps =
      std::round(schedule.warmup_epochs * static_cast<double>(steps_per_epoch));
  if (at < warmup_steps) {
    const double start = schedule.warmup_start_factor;
    return peak_lr * (start + (1.0 - start) * at / warmup_steps);
  }
  switch (schedule.name) {
    case config::ScheduleName::Constant:
      return peak_lr;
    case config::ScheduleName::Cosine: {
      const double decay_steps = std::max(1.0, static_cast<double>(total_steps) - warmup_steps);
      const double t = std::clamp((at - warmup_steps) / decay_steps, 0.0, 1.0);
      const double low = std::min(schedule.min_lr, peak_lr);
      return low + (peak_lr - low) * (1.0 + std::cos(std::numbers::pi * t)) / 2.0;
    }
    case config::ScheduleName::Step: {
      const double epoch = at / static_cast<double>(steps_per_epoch);
      return peak_lr * std::pow(schedule.step_gamma, std::floor(epoch / schedule.step_epochs));
    }
  }
  return peak_lr;
}

}  // namespace orchard::train
