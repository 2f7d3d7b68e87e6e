#include "train/optimizer.hpp"

#include <ATen/ops/_fused_sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/text.hpp"

namespace orchard::train {
namespace {

constexpr const char* kMomentumBuffer = "momentum_buffer";

bool has_fused_kernel(torch::DeviceType type) {
  return type == torch::kCPU || type == torch::kCUDA || type == torch::kMPS;
}

// The fused kernels walk raw memory (CPU) or refuse other strides (CUDA), so a gradient must lie
// exactly as its weight does. Strides of dimensions of size 1 carry no meaning yet differ often
// (1x1 convolutions in channels_last): those are renamed without a copy.
torch::Tensor laid_out_like(const torch::Tensor& tensor, const torch::Tensor& weight) {
  if (tensor.strides() == weight.strides()) {
    return tensor;
  }
  bool same_memory = true;
  for (std::int64_t i = 0; i < weight.dim(); ++i) {
    same_memory &= weight.size(i) == 1 || tensor.stride(i) == weight.stride(i);
  }
  return same_memory ? tensor.as_strided(weight.sizes(), weight.strides())
                     : torch::empty_like(weight).copy_(tensor);
}

void step_plainly(const std::vector<torch::Tensor>& weights,
                  const std::vector<torch::Tensor>& gradients,
                  const std::vector<torch::Tensor>& buffers, double weight_decay, double momentum,
                  double lr, bool nesterov) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    auto update = weight_decay == 0 ? gradients[i] : gradients[i].add(weights[i], weight_decay);
    if (!buffers.empty()) {
      const auto& buffer = buffers[i].mul_(momentum).add_(update);
      update = nesterov ? update.add(buffer, momentum) : buffer;
    }
    weights[i].add_(update, -lr);
  }
}

std::string type_text(const torch::Tensor& tensor) {
  return tensor.defined() ? orchard::str(tensor.scalar_type(), tensor.sizes()) : "undefined";
}

}  // namespace

Optimizer::Optimizer(const config::OptimizerConfig& config, const torch::nn::Module& model,
                     bool fused)
    : config_(config), fused_(fused) {
  if (config.nesterov && config.momentum == 0) {
    throw std::invalid_argument("Nesterov momentum needs a momentum above 0");
  }
  Group decayed{.weight_decay = config.weight_decay, .parameters = {}};
  Group spared{.weight_decay = 0.0, .parameters = {}};
  for (const auto& item : model.named_parameters()) {
    // Norms and biases are the parameters of one dimension.
    const bool decays = config.decay_norm_and_bias || item.value().dim() > 1;
    fused_ &= has_fused_kernel(item.value().device().type());
    (decays ? decayed : spared)
        .parameters.push_back({.name = item.key(),
                               .value = item.value(),
                               .momentum_buffer = config.momentum == 0
                                                      ? torch::Tensor()
                                                      : torch::zeros_like(item.value().detach())});
  }
  groups_ = {std::move(decayed), std::move(spared)};
}

void Optimizer::step(double lr) {
  const torch::NoGradGuard no_grad;
  for (auto& group : groups_) {
    step_group(group, lr);
  }
}

void Optimizer::step_group(Group& group, double lr) {
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> buffers;  // stays empty without momentum, as the kernels want it
  for (auto& [name, value, momentum_buffer] : group.parameters) {
    if (!value.grad().defined()) {
      continue;
    }
    weights.push_back(value);
    gradients.push_back(laid_out_like(value.grad(), value));
    if (momentum_buffer.defined()) {
      momentum_buffer = laid_out_like(momentum_buffer, value);
      buffers.push_back(momentum_buffer);
    }
  }
  if (weights.empty()) {
    return;
  }
  if (fused_) {
    at::_fused_sgd_(weights, gradients, buffers, group.weight_decay, config_.momentum, lr,
                    /*dampening=*/0.0, config_.nesterov, /*maximize=*/false,
                    /*is_first_step=*/false);
  } else {
    step_plainly(weights, gradients, buffers, group.weight_decay, config_.momentum, lr,
                 config_.nesterov);
  }
}

void Optimizer::zero_grad() {
  for (auto& group : groups_) {
    for (auto& parameter : group.parameters) {
      parameter.value.mutable_grad().reset();
    }
  }
}

Optimizer::State Optimizer::state() const {
  State state;
  for (const auto& group : groups_) {
    for (const auto& parameter : group.parameters) {
      if (parameter.momentum_buffer.defined()) {
        state[parameter.name][kMomentumBuffer] = parameter.momentum_buffer;
      }
    }
  }
  return state;
}

void Optimizer::load_state(const State& state) {
  const torch::NoGradGuard no_grad;
  const auto entry = [](const std::string& name, const std::string& kind) {
    return name + " (" + kind + ")";
  };
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> misfits;
  const auto own = this->state();
  for (const auto& [name, kinds] : own) {
    for (const auto& [kind, buffer] : kinds) {
      const auto found = state.find(name);
      if (found == state.end() || !found->second.contains(kind)) {
        missing.push_back(entry(name, kind));
        continue;
      }
      const auto& given = found->second.at(kind);
      if (!given.defined() || given.sizes() != buffer.sizes() ||
          given.scalar_type() != buffer.scalar_type()) {
        misfits.push_back(entry(name, kind) + " is " + type_text(given) + ", not " +
                          type_text(buffer));
      }
    }
  }
  for (const auto& [name, kinds] : state) {
    for (const auto& [kind, tensor] : kinds) {
      const auto found = own.find(name);
      if (found == own.end() || !found->second.contains(kind)) {
        unexpected.push_back(entry(name, kind));
      }
    }
  }
  std::vector<std::string> problems;
  for (const auto& [what, names] :
       {std::pair{"missing: ", &missing}, std::pair{"unexpected: ", &unexpected},
        std::pair{"of another shape or type: ", &misfits}}) {
    if (!names->empty()) {
      problems.push_back(what + some_of(*names));
    }
  }
  if (!problems.empty()) {
    throw std::invalid_argument(join(problems, "; "));
  }
  for (const auto& [name, kinds] : own) {
    for (const auto& [kind, buffer] : kinds) {
      buffer.copy_(state.at(name).at(kind));
    }
  }
}

}  // namespace orchard::train
