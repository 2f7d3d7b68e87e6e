// Turns gradients into new weights. State is kept by parameter name, never by position.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace orchard::train {

// SGD as torch.optim.SGD defines it: g = grad + weight_decay * w; buf = momentum * buf + g (the
// first time: buf = g); w -= lr * (nesterov ? g + momentum * buf : buf).
class Optimizer {
 public:
  // Holds the model's parameters; the model must already be on its device and in its memory format.
  Optimizer(const config::OptimizerConfig& config, const torch::nn::Module& model);

  // One update of every parameter that has a gradient. Does not wait for the device.
  void step(double lr);
  void zero_grad();  // gradients become undefined

  // "conv1.weight" -> {"momentum_buffer": tensor}. Shares memory with the optimizer.
  std::map<std::string, std::map<std::string, torch::Tensor>> state() const;

  // Copies a state() of the same parameters, bit for bit, onto their device. Throws
  // std::invalid_argument naming what is unexpected or has another shape.
  void load_state(const std::map<std::string, std::map<std::string, torch::Tensor>>& state);

 private:
  struct Parameter {
    std::string name;
    torch::Tensor value;
    torch::Tensor momentum_buffer;  // undefined before its first step
  };
  struct Group {
    double weight_decay;
    std::vector<Parameter> parameters;
  };

  void step_group(Group& group, double lr, bool first_steps);

  config::OptimizerConfig config_;
  std::vector<Group> groups_;
};

}  // namespace orchard::train
