// What may happen to a training view after the crop and the horizontal flip.
//
// The order is that of torchvision's reference preset (flip, policy, erasing at the very end), with
// the vertical flip, colour jitter, grey and blur where timm has them:
//   vertical flip, policy, colour jitter, grey, blur, erasing.
// Tables, magnitudes and probabilities are those of torchvision 0.28's RandAugment,
// TrivialAugmentWide, AutoAugment (ImageNet), ColorJitter, RandomGrayscale, GaussianBlur and
// RandomErasing with their defaults: nearest neighbour (the reference preset hands its policies the
// crop's filter instead), black where nothing was.
//
// First what is to be done is drawn, as a list of steps, then it is done: the draws do not depend
// on the pixels. Each part draws from a Philox op of its own, so switching one on shifts no other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/philox.hpp"
#include "config/config.hpp"
#include "data/color_ops.hpp"

namespace orchard::data {

constexpr std::uint32_t kVerticalFlipDraws = 32;
constexpr std::uint32_t kPolicyDraws = 33;
constexpr std::uint32_t kColorJitterDraws = 34;
constexpr std::uint32_t kGrayscaleDraws = 35;
constexpr std::uint32_t kBlurDraws = 36;
constexpr std::uint32_t kErasingDraws = 37;

// The functions of color_ops.hpp; `Identity` leaves the picture as it is.
enum class Op {
  Identity,
  ShearX,
  ShearY,
  TranslateX,
  TranslateY,
  Rotate,
  Brightness,
  Saturation,
  Contrast,
  Sharpness,
  Posterize,
  Solarize,
  AutoContrast,
  Equalize,
  Invert,
  Hue,
  Grayscale,
  Blur,
  FlipVertical,
  Erase,
};

struct Step {
  Op op = Op::Identity;
  double value = 0;  // what the function of color_ops.hpp takes: factor, degrees, pixels, sigma ...
  Box box{};         // of Erase
};

// The value of a policy's operation in one of its bins (31 of rand_augment and
// trivial_augment_wide, 10 of auto_augment) for a picture of that side; a signed one (all geometric
// and blending ones) may be negative. Operations without a magnitude have 0.
double policy_value(config::AugmentPolicy policy, Op op, int bin, bool is_negative, int side_px);

// Whatever `draws` was used for before has no influence.
std::vector<Step> draw_steps(const config::AugmentConfig& config, int side_px, const Philox& draws);

// mean: of red, green and blue in 0..1, what Erase fills with after rounding to 8 bits.
void apply_step(const Step& step, const config::AugmentConfig& config,
                const std::array<double, 3>& mean, Canvas canvas);

// draw_steps, then apply_step of each. rgb: side_px * side_px * 3 bytes.
void augment_view(std::uint8_t* rgb, int side_px, const config::AugmentConfig& config,
                  const std::array<double, 3>& mean, const Philox& draws);

}  // namespace orchard::data
