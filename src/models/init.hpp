// Building blocks and initialisation shared by the families.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace orchard::models {

// A square convolution without bias, padded by (kernel - 1) / 2.
torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride = 1, std::int64_t groups = 1);

// A channel count that a width multiplier has scaled: the nearest multiple of 8, at least 8, and
// never less than 0.9 of what was asked (MobileNetV2's rule).
std::int64_t round_channels(double channels);

// Weights from a generator of their own, module by module in the order of registration:
// convolutions from N(0, 2 / fan_out) (torch's kaiming_normal_, mode fan_out, relu), norms 1 and 0.
// Linear layers: linear_std > 0: N(0, linear_std) and bias 0; else torch's default, U(-1/sqrt(in),
// 1/sqrt(in)) for both.
void initialise(torch::nn::Module& model, std::uint64_t seed, double linear_std);

// Modules draw from the global generator when they are made, though those values are never used.
// This puts the generator back.
class KeepGlobalGenerator {
 public:
  KeepGlobalGenerator();
  ~KeepGlobalGenerator();
  KeepGlobalGenerator(const KeepGlobalGenerator&) = delete;
  KeepGlobalGenerator& operator=(const KeepGlobalGenerator&) = delete;

 private:
  torch::Tensor state_;
};

}  // namespace orchard::models
