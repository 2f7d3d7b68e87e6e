// Turns gradients into new weights. State is kept by parameter name, never by position.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace orchard::train {

// SGD as torch.optim.SGD defines it: g = grad + weight_decay * w; buf = momentum * buf + g;
// w -= lr * (nesterov ? g + momentum * buf : buf). Momentum starts at zero, which makes the first
// step the one of torch (buf = g). Not for use by two threads at a time.
class Optimizer {
 public:
  // Parameter name -> kind of state -> tensor.
  using State = std::map<std::string, std::map<std::string, torch::Tensor>>;

  // Holds the model's parameters; the model must already be on its device and in its memory format.
  // `fused` false takes one plain operation after the other, as on devices without a fused kernel.
  Optimizer(const config::OptimizerConfig& config, const torch::nn::Module& model,
            bool fused = true);

  // One update of every parameter that has a gradient. Does not wait for the device.
  void step(double lr);
  void zero_grad();  // gradients become undefined

  // {"conv1.weight": {"momentum_buffer": tensor}, ...}, with an entry for every parameter, stepped
  // or not; empty without momentum. Shares memory with the optimizer: clone what must not change.
  State state() const;

  // Copies the state() of an optimizer of the same parameters, bit for bit, onto their device.
  // Throws std::invalid_argument naming what is missing, unexpected or of another shape or type;
  // then nothing has changed.
  void load_state(const State& state);

 private:
  struct Parameter {
    std::string name;
    torch::Tensor value;
    torch::Tensor momentum_buffer;  // undefined without momentum
  };
  struct Group {
    double weight_decay;
    std::vector<Parameter> parameters;
  };

  void step_group(Group& group, double lr);

  config::OptimizerConfig config_;
  bool fused_;
  std::vector<Group> groups_;
};

}  // namespace orchard::train
