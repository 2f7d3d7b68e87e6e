#include "train/schedule.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace orchard;
using config::OptimizerConfig;
using config::ScheduleConfig;
using config::ScheduleName;
using train::learning_rate;
using train::peak_learning_rate;

TEST_CASE("the peak is lr, or lr scaled by the batch size") {
  CHECK(peak_learning_rate({.lr = 0.5}, 1024) == 0.5);
  CHECK(peak_learning_rate({.lr = 0.1, .lr_batch_size = 256}, 1024) == doctest::Approx(0.4));
  CHECK(peak_learning_rate({.lr = 0.1, .lr_batch_size = 256}, 32) == doctest::Approx(0.0125));
}

TEST_CASE("warm-up rises by equal steps and reaches the peak at its last step") {
  const ScheduleConfig schedule{
      .name = ScheduleName::Constant, .warmup_epochs = 2, .warmup_start_factor = 0.25};
  const auto lr = [&](std::int64_t step) { return learning_rate(schedule, 0.8, step, 5, 100); };
  CHECK(lr(0) == doctest::Approx(0.2));
  CHECK(lr(1) == doctest::Approx(0.26));
  CHECK(lr(5) == doctest::Approx(0.5));
  CHECK(lr(9) == doctest::Approx(0.74));
  CHECK(lr(10) == 0.8);
  CHECK(lr(99) == 0.8);
}

TEST_CASE("a warm-up of a part of an epoch is rounded to whole steps") {
  ScheduleConfig schedule{
      .name = ScheduleName::Constant, .warmup_epochs = 0.1, .warmup_start_factor = 0};
  CHECK(learning_rate(schedule, 1, 2, 30, 300) == doctest::Approx(2.0 / 3));
  CHECK(learning_rate(schedule, 1, 3, 30, 300) == 1);
  schedule.warmup_epochs = 0.01;  // no step at all
  CHECK(learning_rate(schedule, 1, 0, 30, 300) == 1);
}

TEST_CASE("cosine starts at the peak, is halfway in the middle and would end at min_lr") {
  const ScheduleConfig schedule{
      .name = ScheduleName::Cosine, .warmup_epochs = 1, .warmup_start_factor = 0.01, .min_lr = 0.1};
  const auto lr = [&](std::int64_t step) { return learning_rate(schedule, 0.9, step, 10, 50); };
  CHECK(lr(0) == doctest::Approx(0.009));
  CHECK(lr(10) == 0.9);
  CHECK(lr(30) == doctest::Approx(0.5));
  CHECK(lr(20) == doctest::Approx(0.1 + 0.8 * (1 + std::sqrt(0.5)) / 2));
  CHECK(lr(49) > 0.1);
  CHECK(lr(50) == doctest::Approx(0.1).epsilon(1e-15));
  CHECK(lr(80) == lr(50));  // and stays there
  for (std::int64_t step = 11; step <= 50; ++step) {
    CHECK(lr(step) < lr(step - 1));
  }
}

TEST_CASE("steps drop at whole multiples, counted from the start of the training") {
  ScheduleConfig schedule{.name = ScheduleName::Step, .step_epochs = 30, .step_gamma = 0.1};
  const auto lr = [&](std::int64_t step) { return learning_rate(schedule, 0.1, step, 7, 90 * 7); };
  CHECK(lr(0) == 0.1);
  CHECK(lr(30 * 7 - 1) == 0.1);
  CHECK(lr(30 * 7) == doctest::Approx(0.01));
  CHECK(lr(60 * 7 - 1) == doctest::Approx(0.01));
  CHECK(lr(60 * 7) == doctest::Approx(0.001));
  schedule.warmup_epochs = 5;
  CHECK(lr(5 * 7) == 0.1);
  CHECK(lr(30 * 7 - 1) == 0.1);
  CHECK(lr(30 * 7) == doctest::Approx(0.01));
}

TEST_CASE("parts of epochs between steps do not slip by rounding") {
  // 0.3 / 0.1 is a little below 3 in floating point.
  const ScheduleConfig schedule{.name = ScheduleName::Step, .step_epochs = 0.1, .step_gamma = 0.5};
  for (std::int64_t step = 0; step < 60; ++step) {
    CHECK(learning_rate(schedule, 1, step, 10, 60) == std::pow(0.5, step));
  }
  const ScheduleConfig never{.name = ScheduleName::Step, .step_epochs = 1e300, .step_gamma = 0.5};
  CHECK(learning_rate(never, 1, 59, 10, 60) == 1);
}

TEST_CASE("a warm-up as long as the run never divides by zero") {
  const ScheduleConfig schedule{.name = ScheduleName::Cosine, .warmup_epochs = 3, .min_lr = 0.05};
  CHECK(learning_rate(schedule, 1, 29, 10, 30) == doctest::Approx(0.01 + 0.99 * 29 / 30));
  CHECK(std::isfinite(learning_rate(schedule, 1, 30, 10, 30)));
}
