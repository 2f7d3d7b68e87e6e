#include "data/transforms.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "data/augment.hpp"

namespace orchard::data {
namespace {

// Python's round(): halves go to the even neighbour.
int round_half_even(double value) {
  return static_cast<int>(std::nearbyint(value));
}

void flip_rows(std::uint8_t* rgb, int side_px) {
  const auto row_bytes = static_cast<std::size_t>(side_px) * 3;
  for (int y = 0; y < side_px; ++y) {
    std::uint8_t* left = rgb + static_cast<std::size_t>(y) * row_bytes;
    std::uint8_t* right = left + row_bytes - 3;
    for (; left < right; left += 3, right -= 3) {
      std::swap_ranges(left, left + 3, right);
    }
  }
}

// One axis of torchvision's CenterCrop: what is shown of `size` pixels, and the black before it.
struct CropAxis {
  int from = 0;
  int length = 0;
  int pad = 0;
};

CropAxis center_crop(int size, int crop) {
  if (crop > size) {  // the odd pixel of black comes behind
    return {.from = 0, .length = size, .pad = (crop - size) / 2};
  }
  return {.from = round_half_even((size - crop) / 2.0), .length = crop, .pad = 0};
}

}  // namespace

Box random_crop_box(int width, int height, const config::AugmentConfig& config, Philox& draws) {
  constexpr int kTries = 10;
  const double area = static_cast<double>(width) * height;
  const double log_low = std::log(config.ratio[0]);
  const double log_high = std::log(config.ratio[1]);
  for (int i = 0; i < kTries; ++i) {
    const double target_area = area * draws.uniform(config.scale[0], config.scale[1]);
    const double aspect = std::exp(draws.uniform(log_low, log_high));
    const int w = round_half_even(std::sqrt(target_area * aspect));
    const int h = round_half_even(std::sqrt(target_area / aspect));
    if (w > 0 && w <= width && h > 0 && h <= height) {
      const auto y = static_cast<int>(draws.below(static_cast<std::uint64_t>(height - h + 1)));
      const auto x = static_cast<int>(draws.below(static_cast<std::uint64_t>(width - w + 1)));
      return {x, y, w, h};
    }
  }
  const double aspect = static_cast<double>(width) / height;
  int w = width;
  int h = height;
  if (aspect < config.ratio[0]) {
    h = std::clamp(round_half_even(w / config.ratio[0]), 1, height);
  } else if (aspect > config.ratio[1]) {
    w = std::clamp(round_half_even(h * config.ratio[1]), 1, width);
  }
  return {(width - w) / 2, (height - h) / 2, w, h};
}

void train_view(const Image& image, const config::AugmentConfig& config, Philox draws,
                std::uint8_t* out, const std::array<double, 3>& mean) {
  const auto side = static_cast<int>(config.image_size_px);
  const Box box = random_crop_box(image.width, image.height, config, draws);
  resize({image.rgb.data(), image.width, image.height}, box, side, side, {0, 0, side, side},
         config.interpolation, out);
  if (draws.next_double() < config.hflip_prob) {
    flip_rows(out, side);
  }
  augment_view(out, side, config, mean, draws);
}

void eval_view(const Image& image, const config::PreprocessConfig& config, std::uint8_t* out) {
  const auto short_side = static_cast<std::int64_t>(std::min(image.width, image.height));
  const auto long_side = static_cast<std::int64_t>(std::max(image.width, image.height));
  // int(size * long / short), as torchvision computes it in floating point.
  const double exact_long =
      static_cast<double>(config.resize_px * long_side) / static_cast<double>(short_side);
  if (exact_long > std::numeric_limits<int>::max()) {
    throw BadImageError("too narrow: " + std::to_string(image.width) + "x" +
                        std::to_string(image.height) + " pixels");
  }
  const auto resized_long = static_cast<int>(exact_long);
  const auto resized_short = static_cast<int>(config.resize_px);
  const bool is_wide = image.width > image.height;
  const int width = is_wide ? resized_long : resized_short;
  const int height = is_wide ? resized_short : resized_long;

  const auto crop = static_cast<int>(config.crop_px);
  const CropAxis columns = center_crop(width, crop);
  const CropAxis rows = center_crop(height, crop);
  const Box window = {columns.from, rows.from, columns.length, rows.length};
  const Pixels pixels = {image.rgb.data(), image.width, image.height};
  const Box whole = {0, 0, image.width, image.height};
  if (columns.length == crop && rows.length == crop) {
    resize(pixels, whole, width, height, window, config.interpolation, out);
    return;
  }
  const auto part_row = static_cast<std::size_t>(columns.length) * 3;
  const auto out_row = static_cast<std::size_t>(crop) * 3;
  std::vector<std::uint8_t> part(part_row * static_cast<std::size_t>(rows.length));
  resize(pixels, whole, width, height, window, config.interpolation, part.data());
  std::fill_n(out, out_row * static_cast<std::size_t>(crop), std::uint8_t{0});
  for (std::size_t y = 0; y < static_cast<std::size_t>(rows.length); ++y) {
    std::copy_n(part.data() + y * part_row, part_row,
                out + (static_cast<std::size_t>(rows.pad) + y) * out_row +
                    static_cast<std::size_t>(columns.pad) * 3);
  }
}

}  // namespace orchard::data
