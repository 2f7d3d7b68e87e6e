#include <doctest/doctest.h>
#include <torch/torch.h>

#include <limits>

#include "train/evaluate.hpp"
#include "train/optimizer.hpp"
#include "train/schedule.hpp"

using namespace orchard;
using namespace orchard::train;

namespace {

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 8, 3)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Linear linear{8, 4};
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("linear", linear);
  }
};

std::shared_ptr<Net> make_net(torch::MemoryFormat format = torch::MemoryFormat::Contiguous) {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  net->conv->weight.set_data(net->conv->weight.contiguous(format));
  return net;
}

// Fixed gradients for step `step`, in plain memory order.
void set_gradients(Net& net, std::int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + step));
  for (auto& parameter : net.parameters()) {
    parameter.mutable_grad() = torch::randn(parameter.sizes(), generator);
  }
}

double largest_difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  double largest = 0;
  const auto others = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    largest = std::max(largest, (item.value() - others[item.key()]).abs().max().item<double>());
  }
  return largest;
}

}  // namespace

TEST_CASE("SGD equals LibTorch's own over 20 steps, in any memory order") {
  for (const auto& [momentum, nesterov] : {std::pair{0.0, false}, {0.9, false}, {0.9, true}}) {
    for (const auto format : {torch::MemoryFormat::Contiguous, torch::MemoryFormat::ChannelsLast}) {
      CAPTURE(momentum);
      CAPTURE(nesterov);
      config::OptimizerConfig config;
      config.momentum = momentum;
      config.nesterov = nesterov;
      config.weight_decay = 0.01;
      const auto ours = make_net(format);
      const auto theirs = make_net();
      Optimizer optimizer(config, *ours);
      torch::optim::SGD reference(
          theirs->parameters(),
          torch::optim::SGDOptions(0.1).momentum(momentum).nesterov(nesterov).weight_decay(0.01));
      for (std::int64_t step = 0; step < 20; ++step) {
        set_gradients(*ours, step);
        set_gradients(*theirs, step);
        static_cast<torch::optim::SGDOptions&>(reference.param_groups()[0].options())
            .lr(0.1 / static_cast<double>(step + 1));
        optimizer.step(0.1 / static_cast<double>(step + 1));
        reference.step();
      }
      // One fused multiply-add more or less: a few units in the last place of values near 1.
      CHECK(largest_difference(*ours, *theirs) < 2e-6);
      optimizer.zero_grad();
      CHECK_FALSE(ours->conv->weight.grad().defined());
    }
  }
}

TEST_CASE("norms and biases can be spared from weight decay") {
  config::OptimizerConfig config;
  config.weight_decay = 0.5;
  config.momentum = 0;
  config.decay_norm_and_bias = false;
  const auto net = make_net();
  const auto before = net->conv->weight.detach().clone();
  Optimizer optimizer(config, *net);
  for (auto& parameter : net->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const auto norm_before = net->norm->weight.detach().clone();
  const auto bias_before = net->linear->bias.detach().clone();
  optimizer.step(0.1);
  CHECK(torch::allclose(net->conv->weight, before * 0.95));
  CHECK(torch::equal(net->norm->weight, norm_before));
  CHECK(torch::equal(net->linear->bias, bias_before));
}

TEST_CASE(
    "the optimizer's state goes by name, restores bit for bit and refuses what does not fit") {
  config::OptimizerConfig config;
  const auto whole = make_net();
  Optimizer one(config, *whole);
  for (std::int64_t step = 0; step < 6; ++step) {
    set_gradients(*whole, step);
    one.step(0.1);
  }
  const auto stopped = make_net();
  Optimizer two(config, *stopped);
  for (std::int64_t step = 0; step < 3; ++step) {
    set_gradients(*stopped, step);
    two.step(0.1);
  }
  const auto resumed = make_net();
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : resumed->named_parameters()) {
      item.value().copy_(stopped->named_parameters()[item.key()]);
    }
  }
  Optimizer three(config, *resumed);
  three.load_state(two.state());
  for (std::int64_t step = 3; step < 6; ++step) {
    set_gradients(*resumed, step);
    three.step(0.1);
  }
  CHECK(largest_difference(*whole, *resumed) == 0);

  auto wrong = two.state();
  wrong["nobody"]["momentum_buffer"] = torch::zeros({1});
  CHECK_THROWS_WITH(three.load_state(wrong), "there is no parameter 'nobody'");
  wrong = two.state();
  wrong["linear.bias"]["momentum_buffer"] = torch::zeros({5});
  CHECK_THROWS_AS(three.load_state(wrong), std::invalid_argument);
  wrong = two.state();
  wrong["linear.bias"]["exp_avg"] = torch::zeros({4});
  CHECK_THROWS_AS(three.load_state(wrong), std::invalid_argument);
}

TEST_CASE("learning rates at the corners of a schedule") {
  config::ScheduleConfig schedule;
  schedule.warmup_epochs = 2;
  schedule.warmup_start_factor = 0.1;
  schedule.min_lr = 0.01;
  const auto at = [&](std::int64_t step) { return learning_rate(schedule, 1.0, step, 10, 100); };
  CHECK(at(0) == doctest::Approx(0.1));
  CHECK(at(10) == doctest::Approx(0.55));
  CHECK(at(20) == doctest::Approx(1.0));
  CHECK(at(60) == doctest::Approx(0.505));
  CHECK(at(100) == doctest::Approx(0.01));
  schedule.name = config::ScheduleName::Step;
  schedule.step_epochs = 3;
  CHECK(at(29) == doctest::Approx(1.0));
  CHECK(at(30) == doctest::Approx(0.1));
  CHECK(at(60) == doctest::Approx(0.01));
  schedule.name = config::ScheduleName::Constant;
  CHECK(at(99) == 1.0);
  config::OptimizerConfig optimizer;
  optimizer.lr = 0.1;
  CHECK(peak_learning_rate(optimizer, 64) == 0.1);
  optimizer.lr_batch_size = 256;
  CHECK(peak_learning_rate(optimizer, 64) == doctest::Approx(0.025));
}

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
  const auto input = to_input(batch, device, preprocess);
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
