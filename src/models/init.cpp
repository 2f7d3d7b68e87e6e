#include "models/init.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace orchard::models {

torch::nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                       std::int64_t groups) {
  const std::int64_t padding = (kernel - 1) / 2;
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, {kernel, kernel})
                               .stride({stride, stride})
                               .padding({padding, padding})
                               .groups(groups)
                               .bias(false));
}

std::int64_t round_channels(double channels) {
  const auto rounded = std::max<std::int64_t>(8, static_cast<std::int64_t>(channels + 4) / 8 * 8);
  return static_cast<double>(rounded) < 0.9 * channels ? rounded + 8 : rounded;
}

void initialise(torch::nn::Module& model, std::uint64_t seed, double linear_std) {
  const torch::NoGradGuard no_grad;
  // The generator takes 32 bits of its seed; the others must count too.
  auto generator = at::detail::createCPUGenerator(seed ^ seed >> 32U);
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* convolution = module->as<torch::nn::Conv2d>()) {
      auto& weight = convolution->weight;
      const double fan_out = static_cast<double>(weight.size(0) * weight.size(2) * weight.size(3));
      weight.normal_(0.0, std::sqrt(2.0 / fan_out), generator);
    } else if (auto* norm = module->as<torch::nn::BatchNorm2d>()) {
      norm->weight.fill_(1.0);
      norm->bias.fill_(0.0);
    } else if (auto* linear = module->as<torch::nn::Linear>()) {
      if (linear_std > 0) {
        linear->weight.normal_(0.0, linear_std, generator);
        linear->bias.fill_(0.0);
      } else {
        const double bound = 1.0 / std::sqrt(static_cast<double>(linear->weight.size(1)));
        linear->weight.uniform_(-bound, bound, generator);
        linear->bias.uniform_(-bound, bound, generator);
      }
    }
  }
}

KeepGlobalGenerator::KeepGlobalGenerator() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  state_ = generator.get_state().clone();
}

KeepGlobalGenerator::~KeepGlobalGenerator() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state_);
}

}  // namespace orchard::models
