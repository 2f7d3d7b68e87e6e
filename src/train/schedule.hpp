// The learning rate as a pure function of the step: there is no state to save, and nothing to be
// off by one after a resume.
#pragma once

#include <cstdint>

#include "config/config.hpp"

namespace orchard::train {

// The highest learning rate: optimizer.lr, scaled by batch_size / lr_batch_size where that is set
// (linear scaling rule, Goyal et al., arXiv 1706.02677).
double peak_learning_rate(const config::OptimizerConfig& optimizer, std::int64_t batch_size);

// The learning rate of optimizer step `step` (from 0) of a run of `total_steps`.
//
// Warm-up: linear from warmup_start_factor * peak at step 0 to peak at step W = warmup_epochs *
// steps_per_epoch, rounded (torch's LinearLR stepped per iteration).
// constant: peak from then on.
// cosine: min_lr + (peak - min_lr) * (1 + cos(pi * t)) / 2 with t = (step - W) / (total_steps - W)
// (torch's CosineAnnealingLR with T_max = total_steps - W): min_lr would be reached at step
// total_steps, one after the last. step: peak * step_gamma ^ floor(epoch / step_epochs), epochs
// counted from the start of the training (torch's StepLR stepped per epoch).
double learning_rate(const config::ScheduleConfig& schedule, double peak_lr, std::int64_t step,
                     std::int64_t steps_per_epoch, std::int64_t total_steps);

}  // namespace orchard::train
