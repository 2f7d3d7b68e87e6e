// The models by name. Parameter and buffer names, shapes and initialisation are torchvision's, so
// that weights go both ways.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace orchard::models {

// float32 NCHW images, normalised -> float32 logits [N, num_classes]. No arithmetic on sizes
// happens in forward, and every list argument is given in full, so that the graph can be traced for
// any batch.
class ImageModel : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

struct ModelOptions {
  std::string name;
  std::int64_t num_classes = 1000;
  bool zero_init_residual = false;  // ResNet
  double width_mult = 1.0;          // of every channel count; at 1 torchvision's shapes
  double dropout = 0.2;             // MobileNet
  std::uint64_t seed = 0;  // same seed, same weights; the global generator is left as it was
};

// On the CPU, in training mode. Throws std::invalid_argument for an unknown name, listing the known
// ones and the nearest, and for less than one class.
std::shared_ptr<ImageModel> make_model(const ModelOptions& options);

std::vector<std::string> model_names();  // in the order of the table

std::int64_t num_parameters(const torch::nn::Module& module);

}  // namespace orchard::models
