#include <torch/nn/functional.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "base/text.hpp"
#include "device/device.hpp"

namespace orchard::device {
namespace {

namespace F = torch::nn::functional;

struct NamedTensor {
  const char* name;
  torch::Tensor value;
};

// Fixed inputs without any random generator: sines of different pitch, in -1..1.
torch::Tensor wave(torch::IntArrayRef shape, double pitch) {
  std::int64_t count = 1;
  for (const auto size : shape) {
    count *= size;
  }
  return torch::sin(torch::arange(count, torch::kFloat64) * pitch).reshape(shape);
}

// Two training steps of a small network: every kind of layer that our models consist of, forward
// and backward. What comes back (loss, running statistics, weights after the step) lies on the CPU
// in float64.
std::vector<NamedTensor> train_two_steps(torch::Device device, torch::ScalarType type) {
  const auto place = [&](const torch::Tensor& tensor) { return tensor.to(type).to(device); };
  const auto weight = [&](torch::IntArrayRef shape, double pitch, double scale) {
    return place(wave(shape, pitch) * scale).detach().requires_grad_();
  };
  const auto images = place(wave({4, 3, 20, 20}, 0.37));
  const auto labels = torch::tensor({0, 3, 1, 4}, torch::kInt64).to(device);
  std::vector<NamedTensor> weights = {{"conv 7x7 weight", weight({8, 3, 7, 7}, 1.1, 0.2)},
                                      {"batch norm weight", weight({8}, 0.7, 1.0)},
                                      {"batch norm bias", weight({8}, 0.9, 0.5)},
                                      {"depthwise conv weight", weight({8, 1, 3, 3}, 1.7, 0.4)},
                                      {"conv 1x1 weight", weight({16, 8, 1, 1}, 2.3, 0.4)},
                                      {"linear weight", weight({5, 16}, 1.3, 0.5)},
                                      {"linear bias", weight({5}, 0.5, 0.1)}};
  auto running_mean = place(torch::zeros({8}, torch::kFloat64));
  auto running_var = place(torch::ones({8}, torch::kFloat64));
  torch::Tensor loss;
  for (int step = 0; step < 2; ++step) {
    auto x = torch::conv2d(images, weights[0].value, {}, {2, 2}, {3, 3});
    x = torch::batch_norm(x, weights[1].value, weights[2].value, running_mean, running_var, true,
                          0.1, 1e-5, false);
    x = torch::max_pool2d(torch::relu(x), {3, 3}, {2, 2}, {1, 1});
    x = torch::conv2d(x, weights[3].value, {}, {1, 1}, {1, 1}, {1, 1}, 8);
    x = torch::hardtanh(torch::conv2d(x, weights[4].value), 0, 6);
    x = torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1);
    const auto logits = torch::linear(x, weights[5].value, weights[6].value);
    loss = F::cross_entropy(logits, labels, F::CrossEntropyFuncOptions().label_smoothing(0.1));
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (auto& [name, value] : weights) {
      value.sub_(value.grad(), 0.1);
      value.mutable_grad().reset();
    }
  }
  std::vector<NamedTensor> results = {{"loss", loss}};
  results.push_back({"running mean", running_mean});
  results.push_back({"running variance", running_var});
  results.insert(results.end(), weights.begin(), weights.end());
  for (auto& [name, value] : results) {
    value = value.detach().to(torch::kCPU).to(torch::kFloat64);
  }
  return results;
}

}  // namespace

std::optional<std::string> self_test(torch::Device device) {
  // float32 (and TF32 on CUDA) against float64 on the CPU. TF32 keeps 10 bits: errors up to about
  // 1e-3 of the largest value are sound there; a wrong kernel is off by far more.
  constexpr double kTolerance = 5e-3;
  try {
    const auto expected = train_two_steps(torch::kCPU, torch::kFloat64);
    const auto got = train_two_steps(device, torch::kFloat32);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double scale = expected[i].value.abs().max().item<double>();
      const double difference =
          (got[i].value - expected[i].value).abs().max().item<double>() / scale;
      if (!(difference <= kTolerance)) {  // a NaN is wrong too
        return str(expected[i].name, " is off by ", compact(difference),
                   " of its size from the CPU's");
      }
    }
  } catch (const std::exception& e) {
    return first_line(e);
  }
  return std::nullopt;
}

}  // namespace orchard::device
