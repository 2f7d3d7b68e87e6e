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
  // Whole steps, so that 0.1 epochs of 30 steps are 3 and not a little less. More than any run has
  // is "never".
  const auto steps_of = [steps_per_epoch](double epochs) {
    constexpr double kNever = 1e15;
    return static_cast<std::int64_t>(
        std::llround(std::min(kNever, epochs * static_cast<double>(steps_per_epoch))));
  };
  const std::int64_t warmup_steps = steps_of(schedule.warmup_epochs);
  if (step < warmup_steps) {
    const double start = schedule.warmup_start_factor;
    const double t = static_cast<double>(step) / static_cast<double>(warmup_steps);
    return peak_lr * (start + (1.0 - start) * t);
  }
  switch (schedule.name) {
    case config::ScheduleName::Constant:
      return peak_lr;
    case config::ScheduleName::Cosine: {
      const auto decay_steps = std::max<std::int64_t>(1, total_steps - warmup_steps);
      const double t = std::min(
          1.0, static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps));
      // cos^2(x / 2) is (1 + cos x) / 2 without the cancellation near the end.
      const double root = std::cos(std::numbers::pi / 2 * t);
      const double low = std::min(schedule.min_lr, peak_lr);
      return low + (peak_lr - low) * root * root;
    }
    case config::ScheduleName::Step: {
      const auto steps_between = std::max<std::int64_t>(1, steps_of(schedule.step_epochs));
      const std::int64_t num_drops = step / steps_between;
      return peak_lr * std::pow(schedule.step_gamma, static_cast<double>(num_drops));
    }
  }
  return peak_lr;
}

}  // namespace orchard::train
