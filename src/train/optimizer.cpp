#include "train/optimizer.hpp"

#include <ATen/ops/_fused_sgd.h>
#include <torch/utils.h>

#include <stdexcept>

#include "base/text.hpp"

namespace orchard::train {
namespace {

constexpr const char* kMomentumBuffer = "momentum_buffer";

// The fused kernels walk raw memory: gradient and weight must lie in the same order.
torch::Tensor laid_out_like(const torch::Tensor& tensor, const torch::Tensor& model) {
  if (tensor.strides() == model.strides()) {
    return tensor;
  }
  auto copy = torch::empty_like(model);
  copy.copy_(tensor);
  return copy;
}

}  // namespace

Optimizer::Optimizer(const config::OptimizerConfig& config, const torch::nn::Module& model)
    : config_(config) {
  Group decayed{config.weight_decay, {}};
  Group plain{0.0, {}};
  for (const auto& item : model.named_parameters()) {
    // Norms and biases are the parameters of one dimension.
    const bool decays = config.decay_norm_and_bias || item.value().dim() > 1;
    (decays ? decayed : plain).parameters.push_back({item.key(), item.value(), {}});
  }
  groups_ = {std::move(decayed), std::move(plain)};
}

void Optimizer::step(double lr) {
  const torch::NoGradGuard no_grad;
  for (auto& group : groups_) {
    step_group(group, lr, true);
    step_group(group, lr, false);
  }
}

// Updates the parameters whose momentum starts now, or (first_steps = false) all the others.
void Optimizer::step_group(Group& group, double lr, bool first_steps) {
  const bool has_momentum = config_.momentum != 0;
  if (first_steps && !has_momentum) {
    return;
  }
  std::vector<torch::Tensor> values;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> buffers;
  for (auto& parameter : group.parameters) {
    const auto& gradient = parameter.value.grad();
    const bool is_first = has_momentum && !parameter.momentum_buffer.defined();
    if (!gradient.defined() || is_first != first_steps) {
      continue;
    }
    if (is_first) {
      parameter.momentum_buffer = torch::zeros_like(parameter.value);
    }
    values.push_back(parameter.value);
    gradients.push_back(laid_out_like(gradient, parameter.value));
    if (has_momentum) {
      buffers.push_back(parameter.momentum_buffer);
    }
  }
  if (!values.empty()) {
    at::_fused_sgd_(values, gradients, buffers, group.weight_decay, config_.momentum, lr,
                    /*dampening=*/0.0, config_.nesterov, /*maximize=*/false, first_steps);
  }
}

void Optimizer::zero_grad() {
  for (auto& group : groups_) {
    for (auto& parameter : group.parameters) {
      parameter.value.mutable_grad().reset();
    }
  }
}

std::map<std::string, std::map<std::string, torch::Tensor>> Optimizer::state() const {
  std::map<std::string, std::map<std::string, torch::Tensor>> state;
  for (const auto& group : groups_) {
    for (const auto& parameter : group.parameters) {
      if (parameter.momentum_buffer.defined()) {
        state[parameter.name][kMomentumBuffer] = parameter.momentum_buffer;
      }
    }
  }
  return state;
}

void Optimizer::load_state(
    const std::map<std::string, std::map<std::string, torch::Tensor>>& state) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, Parameter*> by_name;
  for (auto& group : groups_) {
    for (auto& parameter : group.parameters) {
      by_name[parameter.name] = &parameter;
    }
  }
  for (const auto& [name, tensors] : state) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      throw std::invalid_argument("there is no parameter '" + name + "'");
    }
    for (const auto& [kind, tensor] : tensors) {
      if (kind != kMomentumBuffer) {
        throw std::invalid_argument("'" + name + "' has an unknown state '" + kind + "'");
      }
      if (tensor.sizes() != found->second->value.sizes()) {
        throw std::invalid_argument(orchard::str("the momentum of '", name, "' has the shape ",
                                                 c10::str(tensor.sizes()), ", not ",
                                                 c10::str(found->second->value.sizes())));
      }
    }
  }
  // A parameter without an entry has not been stepped yet.
  for (auto& [name, parameter] : by_name) {
    parameter->momentum_buffer = torch::Tensor();
    const auto found = state.find(name);
    if (found != state.end() && found->second.contains(kMomentumBuffer)) {
      parameter->momentum_buffer = torch::empty_like(parameter->value);
      parameter->momentum_buffer.copy_(found->second.at(kMomentumBuffer));
    }
  }
}

}  // namespace orchard::train
