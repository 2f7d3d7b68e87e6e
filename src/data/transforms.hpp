// From a decoded image to the square uint8 RGB picture that the model is fed. Pure functions: every
// random draw comes from the Philox stream that the caller hands in.
#pragma once

#include <array>
#include <cstdint>

#include "base/philox.hpp"
#include "config/config.hpp"
#include "data/decode.hpp"
#include "data/resample.hpp"

namespace orchard::data {

// The Philox op of the draws for the view of one sample. Other draws take other numbers.
constexpr std::uint32_t kViewDraws = 1;

// The box of torchvision's RandomResizedCrop (ten tries of area and log-uniform ratio, then a
// centre crop clipped to the ratio range). Draws, in this order: for each try a double for the area
// and one for the logarithm of the ratio; for the try that fits then a `below` for y and one for x.
Box random_crop_box(int width, int height, const config::AugmentConfig& config, Philox& draws);

// Crops, resizes and perhaps flips. Draws those of random_crop_box, then one double: the view is
// flipped when it is below hflip_prob. augment_view, which has ops of its own, does the rest;
// `mean` is what it erases with. out: image_size_px * image_size_px * 3 bytes.
void train_view(const Image& image, const config::AugmentConfig& config, Philox draws,
                std::uint8_t* out,
                const std::array<double, 3>& mean = config::PreprocessConfig{}.mean);

// torchvision's Resize (short side to resize_px, the long side truncated) and CenterCrop, which
// pads with black when the crop is larger. Throws BadImageError when the long side would have more
// pixels than an int counts. out: crop_px * crop_px * 3 bytes.
void eval_view(const Image& image, const config::PreprocessConfig& config, std::uint8_t* out);

}  // namespace orchard::data
