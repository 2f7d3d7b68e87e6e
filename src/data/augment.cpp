#include "data/augment.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>

namespace orchard::data {
namespace {

using config::AugmentPolicy;

constexpr int kWideBins = 31;  // rand_augment and trivial_augment_wide
constexpr int kAutoBins = 10;

// What rand_augment and trivial_augment_wide choose from, each equally often.
constexpr std::array kWideOps = {Op::Identity,     Op::ShearX,    Op::ShearY,     Op::TranslateX,
                                 Op::TranslateY,   Op::Rotate,    Op::Brightness, Op::Saturation,
                                 Op::Contrast,     Op::Sharpness, Op::Posterize,  Op::Solarize,
                                 Op::AutoContrast, Op::Equalize};

struct AutoStep {
  Op op;
  double probability;
  int bin = 0;
};
using AutoPair = std::array<AutoStep, 2>;

// The 25 pairs that AutoAugment found on ImageNet; some stand there twice.
constexpr std::array<AutoPair, 25> kAutoPairs = {{
    {{{Op::Posterize, 0.4, 8}, {Op::Rotate, 0.6, 9}}},
    {{{Op::Solarize, 0.6, 5}, {Op::AutoContrast, 0.6}}},
    {{{Op::Equalize, 0.8}, {Op::Equalize, 0.6}}},
    {{{Op::Posterize, 0.6, 7}, {Op::Posterize, 0.6, 6}}},
    {{{Op::Equalize, 0.4}, {Op::Solarize, 0.2, 4}}},
    {{{Op::Equalize, 0.4}, {Op::Rotate, 0.8, 8}}},
    {{{Op::Solarize, 0.6, 3}, {Op::Equalize, 0.6}}},
    {{{Op::Posterize, 0.8, 5}, {Op::Equalize, 1.0}}},
    {{{Op::Rotate, 0.2, 3}, {Op::Solarize, 0.6, 8}}},
    {{{Op::Equalize, 0.6}, {Op::Posterize, 0.4, 6}}},
    {{{Op::Rotate, 0.8, 8}, {Op::Saturation, 0.4, 0}}},
    {{{Op::Rotate, 0.4, 9}, {Op::Equalize, 0.6}}},
    {{{Op::Equalize, 0.0}, {Op::Equalize, 0.8}}},
    {{{Op::Invert, 0.6}, {Op::Equalize, 1.0}}},
    {{{Op::Saturation, 0.6, 4}, {Op::Contrast, 1.0, 8}}},
    {{{Op::Rotate, 0.8, 8}, {Op::Saturation, 1.0, 2}}},
    {{{Op::Saturation, 0.8, 8}, {Op::Solarize, 0.8, 7}}},
    {{{Op::Sharpness, 0.4, 7}, {Op::Invert, 0.6}}},
    {{{Op::ShearX, 0.6, 5}, {Op::Equalize, 1.0}}},
    {{{Op::Saturation, 0.4, 0}, {Op::Equalize, 0.6}}},
    {{{Op::Equalize, 0.4}, {Op::Solarize, 0.2, 4}}},
    {{{Op::Solarize, 0.6, 5}, {Op::AutoContrast, 0.6}}},
    {{{Op::Invert, 0.6}, {Op::Equalize, 1.0}}},
    {{{Op::Saturation, 0.6, 4}, {Op::Contrast, 1.0, 8}}},
    {{{Op::Equalize, 0.8}, {Op::Equalize, 0.6}}},
}};

// torch.linspace in float32, which goes from both ends to the middle. The sum is in double, as
// torch's fused multiply-add rounds once.
double linspace(double start, double end, int bin, int bins) {
  const auto first = static_cast<float>(start);
  const auto last = static_cast<float>(end);
  const float step = (last - first) / static_cast<float>(bins - 1);
  const double exact =
      bin < bins / 2 ? static_cast<double>(first) + static_cast<double>(step) * bin
                     : static_cast<double>(last) - static_cast<double>(step) * (bins - 1 - bin);
  return static_cast<float>(exact);
}

void draw_policy(const config::AugmentConfig& config, int side_px, Philox draws,
                 std::vector<Step>& steps) {
  const auto add = [&](Op op, int bin, bool is_negative) {
    if (op != Op::Identity) {
      steps.push_back(
          {.op = op, .value = policy_value(config.policy, op, bin, is_negative, side_px)});
    }
  };
  const auto draw_op = [&] { return kWideOps.at(draws.below(kWideOps.size())); };
  switch (config.policy) {
    case AugmentPolicy::None:
      return;
    case AugmentPolicy::RandAugment:
      for (std::int64_t i = 0; i < config.rand_augment_ops; ++i) {
        const Op op = draw_op();
        const bool is_negative = draws.below(2) == 1;
        add(op, static_cast<int>(config.rand_augment_magnitude), is_negative);
      }
      return;
    case AugmentPolicy::TrivialAugmentWide: {
      const Op op = draw_op();
      const auto bin = static_cast<int>(draws.below(kWideBins));
      add(op, bin, draws.below(2) == 1);
      return;
    }
    case AugmentPolicy::AutoAugment:
      for (const AutoStep& step : kAutoPairs.at(draws.below(kAutoPairs.size()))) {
        const bool is_done = draws.next_double() < step.probability;
        const bool is_negative = draws.below(2) == 1;
        if (is_done) {
          add(step.op, step.bin, is_negative);
        }
      }
      return;
  }
}

void draw_color_jitter(const std::array<double, 4>& jitter, Philox draws,
                       std::vector<Step>& steps) {
  constexpr std::array kOps = {Op::Brightness, Op::Contrast, Op::Saturation, Op::Hue};
  std::array<Step, 4> all;
  for (std::size_t i = 0; i < 4; ++i) {
    const double center = kOps.at(i) == Op::Hue ? 0.0 : 1.0;
    const double reach = jitter.at(i);
    const double least = kOps.at(i) == Op::Hue ? -reach : std::max(1.0 - reach, 0.0);
    all.at(i) = {.op = reach == 0 ? Op::Identity : kOps.at(i),
                 .value = draws.uniform(least, center + reach)};
  }
  for (std::size_t i = 4; i > 1; --i) {
    std::swap(all.at(i - 1), all.at(draws.below(i)));
  }
  std::copy_if(all.begin(), all.end(), std::back_inserter(steps),
               [](const Step& step) { return step.op != Op::Identity; });
}

void draw_erasing(const config::AugmentConfig& config, int side_px, Philox draws,
                  std::vector<Step>& steps) {
  if (draws.next_double() >= config.erasing_prob) {
    return;
  }
  constexpr int kTries = 10;
  const double area = static_cast<double>(side_px) * side_px;
  const double log_low = std::log(config.erasing_ratio[0]);
  const double log_high = std::log(config.erasing_ratio[1]);
  for (int i = 0; i < kTries; ++i) {
    const double erased = area * draws.uniform(config.erasing_scale[0], config.erasing_scale[1]);
    const double aspect = std::exp(draws.uniform(log_low, log_high));
    const auto height = static_cast<int>(std::nearbyint(std::sqrt(erased * aspect)));
    const auto width = static_cast<int>(std::nearbyint(std::sqrt(erased / aspect)));
    if (height < side_px && width < side_px) {
      const auto y =
          static_cast<int>(draws.below(static_cast<std::uint64_t>(side_px - height + 1)));
      const auto x = static_cast<int>(draws.below(static_cast<std::uint64_t>(side_px - width + 1)));
      steps.push_back({.op = Op::Erase, .box = {x, y, width, height}});
      return;
    }
  }
}

}  // namespace

double policy_value(AugmentPolicy policy, Op op, int bin, bool is_negative, int side_px) {
  const bool is_trivial = policy == AugmentPolicy::TrivialAugmentWide;
  const int bins = policy == AugmentPolicy::AutoAugment ? kAutoBins : kWideBins;
  const auto up_to = [&](double most) {
    const double magnitude = linspace(0.0, most, bin, bins);
    return is_negative ? -magnitude : magnitude;
  };
  switch (op) {
    case Op::ShearX:
    case Op::ShearY:
      return up_to(is_trivial ? 0.99 : 0.3);
    case Op::TranslateX:
    case Op::TranslateY:
      return std::trunc(up_to(is_trivial ? 32.0 : 150.0 / 331.0 * side_px));
    case Op::Rotate:
      return up_to(is_trivial ? 135.0 : 30.0);
    case Op::Brightness:
    case Op::Saturation:
    case Op::Contrast:
    case Op::Sharpness:
      return 1.0 + up_to(is_trivial ? 0.99 : 0.9);
    case Op::Posterize: {
      const double most_bits = is_trivial ? 6.0 : 4.0;  // taken away in the last bin
      return 8.0 - std::nearbyint(bin / ((bins - 1) / most_bits));
    }
    case Op::Solarize:
      return linspace(255.0, 0.0, bin, bins);
    default:
      return 0.0;
  }
}

std::vector<Step> draw_steps(const config::AugmentConfig& config, int side_px,
                             const Philox& draws) {
  std::vector<Step> steps;
  if (config.vflip_prob > 0 && draws.of_op(kVerticalFlipDraws).next_double() < config.vflip_prob) {
    steps.push_back({.op = Op::FlipVertical});
  }
  draw_policy(config, side_px, draws.of_op(kPolicyDraws), steps);
  if (config.color_jitter != std::array<double, 4>{}) {
    draw_color_jitter(config.color_jitter, draws.of_op(kColorJitterDraws), steps);
  }
  if (config.grayscale_prob > 0 &&
      draws.of_op(kGrayscaleDraws).next_double() < config.grayscale_prob) {
    steps.push_back({.op = Op::Grayscale});
  }
  if (Philox blur = draws.of_op(kBlurDraws);
      config.blur_prob > 0 && blur.next_double() < config.blur_prob) {
    steps.push_back(
        {.op = Op::Blur, .value = blur.uniform(config.blur_sigma[0], config.blur_sigma[1])});
  }
  if (config.erasing_prob > 0) {
    draw_erasing(config, side_px, draws.of_op(kErasingDraws), steps);
  }
  return steps;
}

void apply_step(const Step& step, const config::AugmentConfig& config,
                const std::array<double, 3>& mean, Canvas canvas) {
  constexpr Rgb kBlack = {0, 0, 0};
  switch (step.op) {
    case Op::Identity:
      return;
    case Op::ShearX:
      return shear_x(canvas, step.value, kBlack);
    case Op::ShearY:
      return shear_y(canvas, step.value, kBlack);
    case Op::TranslateX:
      return translate(canvas, static_cast<int>(step.value), 0, kBlack);
    case Op::TranslateY:
      return translate(canvas, 0, static_cast<int>(step.value), kBlack);
    case Op::Rotate:
      return rotate(canvas, step.value, kBlack);
    case Op::Brightness:
      return adjust_brightness(canvas, step.value);
    case Op::Saturation:
      return adjust_saturation(canvas, step.value);
    case Op::Contrast:
      return adjust_contrast(canvas, step.value);
    case Op::Sharpness:
      return adjust_sharpness(canvas, step.value);
    case Op::Posterize:
      return posterize(canvas, static_cast<int>(step.value));
    case Op::Solarize:
      return solarize(canvas, step.value);
    case Op::AutoContrast:
      return autocontrast(canvas);
    case Op::Equalize:
      return equalize(canvas);
    case Op::Invert:
      return invert(canvas);
    case Op::Hue:
      return adjust_hue(canvas, step.value);
    case Op::Grayscale:
      return grayscale(canvas);
    case Op::Blur:
      return gaussian_blur(canvas, static_cast<int>(config.blur_kernel_px), step.value);
    case Op::FlipVertical:
      return flip_vertical(canvas);
    case Op::Erase: {
      const auto byte = [](double share) {
        return static_cast<std::uint8_t>(std::nearbyint(share * 255.0));
      };
      return fill_box(canvas, step.box, {byte(mean[0]), byte(mean[1]), byte(mean[2])});
    }
  }
}

void augment_view(std::uint8_t* rgb, int side_px, const config::AugmentConfig& config,
                  const std::array<double, 3>& mean, const Philox& draws) {
  for (const Step& step : draw_steps(config, side_px, draws)) {
    apply_step(step, config, mean, {.rgb = rgb, .width = side_px, .height = side_px});
  }
}

}  // namespace orchard::data
