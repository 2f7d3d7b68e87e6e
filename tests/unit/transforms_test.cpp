#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "data/transforms.hpp"

using namespace orchard;
using namespace orchard::data;

namespace {

Image filled(int width, int height, std::uint8_t value) {
  return {.width = width,
          .height = height,
          .rgb = std::vector<std::uint8_t>(
              static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3, value)};
}

}  // namespace

TEST_CASE("eval_view pads with black, the odd pixel behind") {
  config::PreprocessConfig config;
  config.resize_px = 8;
  config.crop_px = 11;
  std::vector<std::uint8_t> out(11 * 11 * 3, 7);
  eval_view(filled(8, 8, 200), config, out.data());
  for (int y = 0; y < 11; ++y) {
    for (int x = 0; x < 11; ++x) {
      const bool is_shown = x >= 1 && x < 9 && y >= 1 && y < 9;
      for (int c = 0; c < 3; ++c) {
        CHECK(out[static_cast<std::size_t>((y * 11 + x) * 3 + c)] == (is_shown ? 200 : 0));
      }
    }
  }
}

TEST_CASE("views of slivers: no more memory than the view needs, and a limit that is told") {
  config::PreprocessConfig config;
  std::vector<std::uint8_t> out(224 * 224 * 3);
  // Resized as a whole, this would be 256 x 512,000,000 pixels.
  const Image sliver = filled(1, 2'000'000, 90);
  eval_view(sliver, config, out.data());
  CHECK(out == std::vector<std::uint8_t>(224 * 224 * 3, 90));
  CHECK_THROWS_AS(eval_view(filled(1, 9'000'000, 90), config, out.data()), BadImageError);

  config::AugmentConfig augment;
  train_view(sliver, augment, Philox(1, 2, 3, kViewDraws), out.data());
  CHECK(out == std::vector<std::uint8_t>(224 * 224 * 3, 90));
}

TEST_CASE("train_view flips as often as it is told") {
  // The left half is black, the right one white, and the crop takes (almost) the whole image.
  Image image = filled(40, 40, 0);
  for (std::size_t i = 0; i < image.rgb.size(); ++i) {
    image.rgb[i] = i / 3 % 40 < 20 ? 0 : 255;
  }
  config::AugmentConfig config;
  config.image_size_px = 16;
  config.scale = {0.999, 1.0};
  config.ratio = {0.999, 1.001};
  for (const double probability : {0.0, 0.25, 1.0}) {
    config.hflip_prob = probability;
    int num_flipped = 0;
    std::vector<std::uint8_t> out(16 * 16 * 3);
    for (std::uint64_t sample = 0; sample < 2000; ++sample) {
      train_view(image, config, Philox(5, sample, 0, kViewDraws), out.data());
      REQUIRE(out[0] == 255 - out[15 * 3]);
      num_flipped += out[0] == 255 ? 1 : 0;
    }
    CHECK(num_flipped / 2000.0 == doctest::Approx(probability).epsilon(0.12));
  }
}
