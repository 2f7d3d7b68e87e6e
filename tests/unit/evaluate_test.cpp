#include <doctest/doctest.h>
#include <torch/torch.h>

#include <limits>

#include "train/evaluate.hpp"

using namespace orchard;
using namespace orchard::train;

TEST_CASE("ranks, probabilities and loss of a row of logits") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(top_classes(std::vector<float>{1, 3, 2, 3}, 3) == std::vector<std::int64_t>{1, 3, 2});
  CHECK(top_classes(std::vector<float>{nan, 1, nan, 2}, 9) ==
        std::vector<std::int64_t>{3, 1, 0, 2});
  CHECK(top_classes(std::vector<float>{0, 0}, 1) == std::vector<std::int64_t>{0});
  const auto logits = torch::randn({1, 7}, at::detail::createCPUGenerator(1)) * 30;
  const std::span<const float> row(logits.const_data_ptr<float>(), 7);
  const auto expected = torch::softmax(logits.to(torch::kFloat64), 1);
  const auto got = softmax(row);
  for (std::int64_t i = 0; i < 7; ++i) {
    CHECK(got[static_cast<std::size_t>(i)] == doctest::Approx(expected[0][i].item<double>()));
    CHECK(cross_entropy(row, i) ==
          doctest::Approx(-torch::log_softmax(logits.to(torch::kFloat64), 1)[0][i].item<double>()));
  }
  CHECK(cross_entropy(std::vector<float>{1000, 0}, 1) == doctest::Approx(1000));
}

TEST_CASE("pixels become normalised channels_last floats in torchvision's order of operations") {
  data::Batch batch;
  batch.side_px = 8;
  batch.labels = {0, 1};
  batch.samples = {0, 1};
  batch.pixels = std::shared_ptr<std::uint8_t>(new std::uint8_t[2 * 8 * 8 * 3],
                                               std::default_delete<std::uint8_t[]>());
  for (int i = 0; i < 2 * 8 * 8 * 3; ++i) {
    batch.pixels.get()[i] = static_cast<std::uint8_t>(i * 7);
  }
  const auto device = device::choose("cpu", 0);
  const config::PreprocessConfig preprocess;
  const auto input = to_input(batch, device, {preprocess, device});
  CHECK(input.sizes() == torch::IntArrayRef({2, 3, 8, 8}));
  CHECK(input.is_contiguous(torch::MemoryFormat::ChannelsLast));
  for (const auto& [n, y, x, c] : {std::tuple{0, 0, 0, 0}, {1, 3, 5, 2}, {1, 7, 7, 1}}) {
    const auto pixel = static_cast<float>(batch.pixels.get()[((n * 8 + y) * 8 + x) * 3 + c]);
    const float expected =
        (pixel / 255.0F - static_cast<float>(preprocess.mean.at(static_cast<std::size_t>(c)))) /
        static_cast<float>(preprocess.std.at(static_cast<std::size_t>(c)));
    CHECK(input[n][c][y][x].item<float>() == expected);
  }
}
