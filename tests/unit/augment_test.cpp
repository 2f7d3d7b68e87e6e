#include "data/augment.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.hpp"
#include "config/load.hpp"
#include "data/transforms.hpp"
#include "support/contains.hpp"

using namespace orchard;
using namespace orchard::data;
using config::AugmentConfig;
using config::AugmentPolicy;

namespace {

constexpr int kSide = 48;
constexpr std::array<double, 3> kMean = {0.485, 0.456, 0.406};

std::vector<std::uint8_t> noise(int width, int height) {
  Philox draws(77, 0, 0, 0);
  std::vector<std::uint8_t> rgb(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                                3);
  std::generate(rgb.begin(), rgb.end(),
                [&] { return static_cast<std::uint8_t>(draws.next_u32() >> 24U); });
  return rgb;
}

std::vector<Step> steps_of(const AugmentConfig& config, std::uint64_t sample,
                           std::uint32_t epoch = 0) {
  return draw_steps(config, kSide, Philox(5, sample, epoch, kViewDraws));
}

std::vector<std::uint8_t> view_of(const AugmentConfig& config, std::uint64_t sample) {
  auto rgb = noise(kSide, kSide);
  augment_view(rgb.data(), kSide, config, kMean, Philox(5, sample, 0, kViewDraws));
  return rgb;
}

bool same(const Step& a, const Step& b) {
  const auto fields = [](const Step& step) {
    return std::tuple(step.op, step.value, step.box.x, step.box.y, step.box.width, step.box.height);
  };
  return fields(a) == fields(b);
}

bool same(const std::vector<Step>& a, const std::vector<Step>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Step& x, const Step& y) { return same(x, y); });
}

AugmentConfig with(const std::function<void(AugmentConfig&)>& change) {
  AugmentConfig config;
  change(config);
  return config;
}

// Every part, switched on alone, in the order in which they come.
const std::vector<std::function<void(AugmentConfig&)>> kParts = {
    [](AugmentConfig& c) { c.vflip_prob = 0.5; },
    [](AugmentConfig& c) { c.policy = AugmentPolicy::RandAugment; },
    [](AugmentConfig& c) { c.color_jitter = {0.4, 0.3, 0.2, 0.1}; },
    [](AugmentConfig& c) { c.grayscale_prob = 0.3; },
    [](AugmentConfig& c) { c.blur_prob = 0.6; },
    [](AugmentConfig& c) { c.erasing_prob = 0.7; },
};

// Chi-square of counts that should be equal.
double unevenness(const std::vector<int>& counts) {
  double total = 0;
  for (const int count : counts) {
    total += count;
  }
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const int count : counts) {
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

Canvas canvas_of(std::vector<std::uint8_t>& rgb, int width, int height) {
  return {.rgb = rgb.data(), .width = width, .height = height};
}

std::string error_of(const std::string& json) {
  try {
    config::load_text(json, "test.json", {});
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Config);
    CHECK(!e.remedy().empty());
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a Philox gives the stream of another op, from its start") {
  Philox used(3, (std::uint64_t{9} << 32U) + 1, 4, kViewDraws);
  used.next_u32();
  used.next_u64();
  Philox derived = used.of_op(kErasingDraws);
  Philox fresh(3, (std::uint64_t{9} << 32U) + 1, 4, kErasingDraws);
  for (int i = 0; i < 9; ++i) {
    CHECK(derived.next_u32() == fresh.next_u32());
  }
  Philox back = derived.of_op(kViewDraws);
  CHECK(back.next_u64() == Philox(3, (std::uint64_t{9} << 32U) + 1, 4, kViewDraws).next_u64());
}

TEST_CASE("nothing happens by default, nor at probability 0; at 1 it always does") {
  const auto plain = noise(kSide, kSide);
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    CHECK(steps_of(AugmentConfig{}, sample).empty());
    CHECK(view_of(AugmentConfig{}, sample) == plain);
  }
  const std::map<Op, double AugmentConfig::*> probabilities = {
      {Op::FlipVertical, &AugmentConfig::vflip_prob},
      {Op::Grayscale, &AugmentConfig::grayscale_prob},
      {Op::Blur, &AugmentConfig::blur_prob},
      {Op::Erase, &AugmentConfig::erasing_prob}};
  for (const auto& [op, probability] : probabilities) {
    for (const double wanted : {0.0, 0.25, 1.0}) {
      AugmentConfig config;
      config.*probability = wanted;
      int num_done = 0;
      for (std::uint64_t sample = 0; sample < 4000; ++sample) {
        const auto steps = steps_of(config, sample);
        REQUIRE(steps.size() <= 1);
        CHECK((steps.empty() || steps[0].op == op));
        num_done += static_cast<int>(steps.size());
      }
      CHECK(num_done / 4000.0 == doctest::Approx(wanted).epsilon(0.09));
    }
  }
}

TEST_CASE("the same key gives the same view, another sample or epoch another one") {
  AugmentConfig config;
  for (const auto& part : kParts) {
    part(config);
  }
  int num_same_sample = 0;
  int num_same_epoch = 0;
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    CHECK(same(steps_of(config, sample), steps_of(config, sample)));
    CHECK(view_of(config, sample) == view_of(config, sample));
    num_same_sample += same(steps_of(config, sample), steps_of(config, sample + 1)) ? 1 : 0;
    num_same_epoch += same(steps_of(config, sample, 0), steps_of(config, sample, 1)) ? 1 : 0;
  }
  CHECK(num_same_sample == 0);
  CHECK(num_same_epoch == 0);
}

TEST_CASE("switching one part on shifts the draws of no other, and the order is fixed") {
  AugmentConfig all;
  for (const auto& part : kParts) {
    part(all);
  }
  for (std::uint64_t sample = 0; sample < 300; ++sample) {
    std::vector<Step> one_by_one;
    for (const auto& part : kParts) {
      for (const Step& step : steps_of(with(part), sample)) {
        one_by_one.push_back(step);
      }
    }
    CHECK(same(steps_of(all, sample), one_by_one));
  }
}

TEST_CASE("what one part does tells nothing of what another does") {
  const auto config = with([](AugmentConfig& c) {
    c.vflip_prob = c.grayscale_prob = c.blur_prob = c.erasing_prob = 0.5;
  });
  std::vector<int> counts(16);
  for (std::uint64_t sample = 0; sample < 8000; ++sample) {
    std::size_t which = 0;
    for (const Step& step : steps_of(config, sample)) {
      which |= step.op == Op::FlipVertical ? 1U
               : step.op == Op::Grayscale  ? 2U
               : step.op == Op::Blur       ? 4U
                                           : 8U;
    }
    ++counts[which];
  }
  CHECK(unevenness(counts) < 37.7);  // p = 0.001 with 15 degrees of freedom
}

TEST_CASE("more operations of rand_augment leave the first ones as they were") {
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    auto config = with([](AugmentConfig& c) { c.policy = AugmentPolicy::RandAugment; });
    const auto few = steps_of(config, sample);
    config.rand_augment_ops = 5;
    const auto many = steps_of(config, sample);
    REQUIRE(few.size() <= many.size());
    CHECK(same(few, {many.begin(), many.begin() + static_cast<std::ptrdiff_t>(few.size())}));
  }
}

TEST_CASE("crop and horizontal flip do not depend on what comes after them") {
  const Image image = {.width = 70, .height = 61, .rgb = noise(70, 61)};
  AugmentConfig plain;
  plain.image_size_px = kSide;
  AugmentConfig erasing = plain;
  erasing.erasing_prob = 1;
  const std::array<double, 3> mean = {0.1, 0.5, 1.0};
  for (std::uint64_t sample = 0; sample < 40; ++sample) {
    const Philox draws(5, sample, 0, kViewDraws);
    std::vector<std::uint8_t> before(kSide * kSide * 3);
    std::vector<std::uint8_t> after(kSide * kSide * 3);
    train_view(image, plain, draws, before.data(), mean);
    train_view(image, erasing, draws, after.data(), mean);
    const auto steps = steps_of(erasing, sample);
    REQUIRE(steps.size() == 1);
    const Box& box = steps[0].box;
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const bool is_erased =
            x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height;
        const auto at = static_cast<std::size_t>((y * kSide + x) * 3);
        const Rgb expected = is_erased ? Rgb{26, 128, 255}  // 25.5 and 127.5 go to the even side
                                       : Rgb{before[at], before[at + 1], before[at + 2]};
        REQUIRE(Rgb{after[at], after[at + 1], after[at + 2]} == expected);
      }
    }
  }
}

TEST_CASE("rand_augment and trivial_augment_wide choose all operations, bins and signs alike") {
  constexpr int kSamples = 14000;
  for (const auto policy : {AugmentPolicy::RandAugment, AugmentPolicy::TrivialAugmentWide}) {
    auto config = with([&](AugmentConfig& c) { c.policy = policy; });
    config.rand_augment_ops = 1;
    std::map<Op, int> counts;
    std::map<double, int> angles;
    int num_negative = 0;
    for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
      const auto steps = steps_of(config, sample);
      REQUIRE(steps.size() <= 1);
      ++counts[steps.empty() ? Op::Identity : steps[0].op];
      if (!steps.empty() && steps[0].op == Op::Rotate) {
        ++angles[std::abs(steps[0].value)];
        num_negative += steps[0].value < 0 ? 1 : 0;
      }
    }
    CHECK(counts.size() == 14);
    CHECK(counts.count(Op::Invert) == 0);
    std::vector<int> numbers;
    for (const auto& [op, count] : counts) {
      numbers.push_back(count);
    }
    CHECK(unevenness(numbers) < 34.5);  // p = 0.001 with 13 degrees of freedom
    if (policy == AugmentPolicy::RandAugment) {
      REQUIRE(angles.size() == 1);
      CHECK(angles.begin()->first == doctest::Approx(9.0));
      CHECK(num_negative / double(counts[Op::Rotate]) == doctest::Approx(0.5).epsilon(0.1));
    } else {
      numbers.clear();
      for (const auto& [angle, count] : angles) {
        numbers.push_back(count);
      }
      CHECK(angles.size() == 31);
      CHECK(angles.rbegin()->first == doctest::Approx(135.0));
      CHECK(unevenness(numbers) < 59.7);  // p = 0.001 with 30 degrees of freedom
    }
  }
}

TEST_CASE("auto_augment does its operations as often as its table says") {
  const auto config = with([](AugmentConfig& c) { c.policy = AugmentPolicy::AutoAugment; });
  constexpr int kSamples = 20000;
  std::map<Op, int> counts;
  for (std::uint64_t sample = 0; sample < kSamples; ++sample) {
    for (const Step& step : steps_of(config, sample)) {
      ++counts[step.op];
    }
  }
  // The probabilities of each operation, added up over the 25 pairs.
  const std::map<Op, double> expected = {
      {Op::Posterize, 2.8}, {Op::Rotate, 3.6},     {Op::Solarize, 3.6}, {Op::AutoContrast, 1.2},
      {Op::Equalize, 11.6}, {Op::Saturation, 3.8}, {Op::Invert, 1.8},   {Op::Contrast, 2.0},
      {Op::Sharpness, 0.4}, {Op::ShearX, 0.6}};
  CHECK(counts.size() == expected.size());
  for (const auto& [op, sum] : expected) {
    const double wanted = kSamples * sum / 25;
    CAPTURE(static_cast<int>(op));
    CHECK(std::abs(counts[op] - wanted) < 4 * std::sqrt(wanted));
  }
}

TEST_CASE("colour jitter: ranges, every order, and nothing for a 0") {
  auto config = with([](AugmentConfig& c) { c.color_jitter = {0.4, 1.5, 0.2, 0.1}; });
  const std::map<Op, std::pair<double, double>> ranges = {{Op::Brightness, {0.6, 1.4}},
                                                          {Op::Contrast, {0.0, 2.5}},
                                                          {Op::Saturation, {0.8, 1.2}},
                                                          {Op::Hue, {-0.1, 0.1}}};
  std::map<std::vector<int>, int> orders;
  std::map<Op, std::pair<double, double>> seen;
  for (std::uint64_t sample = 0; sample < 6000; ++sample) {
    std::vector<int> order;
    for (const Step& step : steps_of(config, sample)) {
      order.push_back(static_cast<int>(step.op));
      auto& [least, most] = seen.try_emplace(step.op, step.value, step.value).first->second;
      least = std::min(least, step.value);
      most = std::max(most, step.value);
    }
    ++orders[order];
  }
  for (const auto& [op, range] : ranges) {
    const double slack = (range.second - range.first) * 0.01;
    CHECK(seen[op].first >= range.first);
    CHECK(seen[op].second <= range.second);
    CHECK(seen[op].first < range.first + slack);
    CHECK(seen[op].second > range.second - slack);
  }
  std::vector<int> numbers;
  for (const auto& [order, count] : orders) {
    numbers.push_back(count);
  }
  CHECK(numbers.size() == 24);
  CHECK(unevenness(numbers) < 49.8);  // p = 0.001 with 23 degrees of freedom

  // The others stay where they were.
  const auto with_hue = steps_of(config, 3);
  config.color_jitter[3] = 0;
  std::vector<Step> expected;
  for (const Step& step : with_hue) {
    if (step.op != Op::Hue) {
      expected.push_back(step);
    }
  }
  CHECK(expected.size() == 3);
  CHECK(same(steps_of(config, 3), expected));
}

TEST_CASE("blur draws its sigma from the range") {
  const auto config = with([](AugmentConfig& c) {
    c.blur_prob = 1;
    c.blur_sigma = {0.5, 0.75};
  });
  double sum = 0;
  for (std::uint64_t sample = 0; sample < 2000; ++sample) {
    const double sigma = steps_of(config, sample).at(0).value;
    CHECK(sigma >= 0.5);
    CHECK(sigma < 0.75);
    sum += sigma;
  }
  CHECK(sum / 2000 == doctest::Approx(0.625).epsilon(0.01));
}

TEST_CASE("erasing keeps to its ranges of area and ratio, within the picture") {
  auto config = with([](AugmentConfig& c) {
    c.erasing_prob = 1;
    c.erasing_scale = {0.1, 0.3};
    c.erasing_ratio = {0.5, 4.0};
  });
  double smallest = 1;
  double largest = 0;
  double flattest = 10;
  double steepest = 0;
  int num_left_edge = 0;
  for (std::uint64_t sample = 0; sample < 5000; ++sample) {
    const auto steps = draw_steps(config, 200, Philox(5, sample, 0, kViewDraws));
    REQUIRE(steps.size() == 1);
    const Box& box = steps[0].box;
    CHECK(box.x >= 0);
    CHECK(box.y >= 0);
    CHECK(box.x + box.width <= 200);
    CHECK(box.y + box.height <= 200);
    const double share = box.width * box.height / 40000.0;
    const double ratio = box.height / double(box.width);
    smallest = std::min(smallest, share);
    largest = std::max(largest, share);
    flattest = std::min(flattest, ratio);
    steepest = std::max(steepest, ratio);
    num_left_edge += box.x == 0 ? 1 : 0;
  }
  // Sides are rounded to whole pixels.
  CHECK(smallest == doctest::Approx(0.1).epsilon(0.03));
  CHECK(largest == doctest::Approx(0.3).epsilon(0.03));
  CHECK(flattest == doctest::Approx(0.5).epsilon(0.03));
  CHECK(steepest == doctest::Approx(4.0).epsilon(0.06));
  CHECK(num_left_edge > 0);

  config.erasing_scale = {1.0, 1.0};  // as large as the picture: never fits
  CHECK(steps_of(config, 1).empty());
}

TEST_CASE("operations by hand") {
  std::vector<std::uint8_t> rgb = {0, 100, 200, 255, 51, 7};
  const auto after = [&](const std::function<void(Canvas)>& change) {
    auto copy = rgb;
    change(canvas_of(copy, 2, 1));
    return std::vector<int>(copy.begin(), copy.end());
  };
  using Ints = std::vector<int>;
  CHECK(after(invert) == Ints{255, 155, 55, 0, 204, 248});
  CHECK(after([](Canvas c) { posterize(c, 1); }) == Ints{0, 0, 128, 128, 0, 0});
  CHECK(after([](Canvas c) { posterize(c, 0); }) == Ints{0, 0, 0, 0, 0, 0});
  CHECK(after([](Canvas c) { solarize(c, 100.0); }) == Ints{0, 155, 55, 0, 51, 7});
  CHECK(after([](Canvas c) { adjust_brightness(c, 1.5); }) == Ints{0, 150, 255, 255, 76, 10});
  // 0.587 * 100 + 0.114 * 200 = 81.5 and 0.299 * 255 + 0.587 * 51 + 0.114 * 7 = 106.98
  CHECK(after(grayscale) == Ints{82, 82, 82, 107, 107, 107});
  // The mean of 82 and 107, 94.5, is rounded up.
  CHECK(after([](Canvas c) { adjust_contrast(c, 0.0); }) == Ints(6, 95));
  CHECK(after([](Canvas c) { adjust_saturation(c, 0.0); }) == Ints{82, 82, 82, 107, 107, 107});
  CHECK(after(autocontrast) == Ints{0, 255, 255, 255, 0, 0});
  CHECK(after([](Canvas c) { translate(c, 1, 0, {1, 2, 3}); }) == Ints{1, 2, 3, 0, 100, 200});
  CHECK(after([](Canvas c) { translate(c, 0, -1, {1, 2, 3}); }) == Ints{1, 2, 3, 1, 2, 3});
  CHECK(after([](Canvas c) { rotate(c, 180, {1, 2, 3}); }) == Ints{255, 51, 7, 0, 100, 200});
  // Red, of hue 0, and blue, of hue 170, go on by 84 of the 255 steps of the circle.
  rgb = {255, 0, 0, 0, 0, 255};
  CHECK(after([](Canvas c) { adjust_hue(c, 0.3333); }) == Ints{6, 255, 0, 255, 0, 6});
}

TEST_CASE("sharpness leaves the border, smooths within") {
  std::vector<std::uint8_t> rgb(5 * 5 * 3, 0);
  rgb[(2 * 5 + 2) * 3] = 130;  // red, in the centre
  rgb[0] = 200;
  adjust_sharpness(canvas_of(rgb, 5, 5), 0.0);
  CHECK(rgb[0] == 200);
  CHECK(rgb[(2 * 5 + 2) * 3] == 50);
  CHECK(rgb[(1 * 5 + 2) * 3] == 10);
  CHECK(rgb[(1 * 5 + 1) * 3] == 25);  // (130 + 200) / 13
  CHECK(rgb[(2 * 5 + 2) * 3 + 1] == 0);
}

TEST_CASE("a quarter turn, a flip and a blur of what is the same everywhere") {
  const auto before = noise(7, 7);
  auto turned = before;
  rotate(canvas_of(turned, 7, 7), 90, {0, 0, 0});
  auto flipped = before;
  flip_vertical(canvas_of(flipped, 7, 7));
  for (std::size_t y = 0; y < 7; ++y) {
    for (std::size_t x = 0; x < 7; ++x) {
      CHECK(turned[(y * 7 + x) * 3] == before[(x * 7 + (6 - y)) * 3]);  // counter-clockwise
      CHECK(flipped[(y * 7 + x) * 3 + 1] == before[((6 - y) * 7 + x) * 3 + 1]);
    }
  }
  std::vector<std::uint8_t> constant(9 * 8 * 3, 201);
  gaussian_blur(canvas_of(constant, 9, 8), 15, 3.0);
  CHECK(constant == std::vector<std::uint8_t>(9 * 8 * 3, 201));
}

TEST_CASE("faults of the configuration") {
  CHECK(contains(error_of(R"({"augment": {"vflip_prob": 1.5}})"),
                 "augment.vflip_prob: must be from 0 to 1, not 1.5"));
  CHECK(contains(error_of(R"({"augment": {"policy": "randaugment"}})"),
                 "must be one of none, rand_augment, trivial_augment_wide, auto_augment"));
  CHECK(contains(error_of(R"({"augment": {"rand_augment_magnitude": 31}})"),
                 "must be from 0 to 30, not 31"));
  CHECK(contains(error_of(R"({"augment": {"rand_augment_ops": 0}})"), "must be from 1 to 16"));
  CHECK(contains(error_of(R"({"augment": {"color_jitter": [0.4, 0.4, 0.4]}})"),
                 "must be an array of 4 numbers"));
  CHECK(contains(error_of(R"({"augment": {"color_jitter": [0.4, 0.4, 0.4, 0.6]}})"),
                 "the last number (hue) must be at most 0.5, not 0.6"));
  CHECK(contains(error_of(R"({"augment": {"color_jitter": [-1, 0, 0, 0]}})"), "must be from 0"));
  CHECK(contains(error_of(R"({"augment": {"blur_kernel_px": 4}})"),
                 "must be odd and below twice augment.image_size_px (224), not 4"));
  CHECK(contains(
      error_of(R"({"augment": {"blur_prob": 0.1, "image_size_px": 11}})"),
      "augment.blur_kernel_px: must be odd and below twice augment.image_size_px (11), not 23"));
  CHECK(error_of(R"({"augment": {"blur_prob": 0.1, "image_size_px": 12}})").empty());
  CHECK(error_of(R"({"augment": {"image_size_px": 8}})").empty());
  for (const std::string field : {"blur_sigma", "erasing_scale", "erasing_ratio"}) {
    CHECK(contains(error_of(R"({"augment": {")" + field + R"(": [0.9, 0.5]}})"),
                   "augment." + field + ": the first number must not be larger than the second"));
  }
  CHECK(contains(error_of(R"({"augment": {"erasing_scale": [0.1, 1.5]}})"), "must be from 1e-06"));
}

TEST_CASE("what is done to the images must not change when a run is resumed") {
  config::Config started;
  config::Config now = started;
  now.augment.policy = AugmentPolicy::TrivialAugmentWide;
  now.augment.erasing_prob = 0.25;
  const auto conflicts = config::resume_conflicts(started, now);
  REQUIRE(conflicts.size() == 2);
  CHECK(contains(conflicts[0], "augment.policy"));
  CHECK(contains(conflicts[1], "augment.erasing_prob"));
}
