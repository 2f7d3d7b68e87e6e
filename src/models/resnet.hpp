// ResNet (He et al., arXiv 1512.03385), in the "v1.5" form of torchvision: the stride of a
// bottleneck is in its 3x3 convolution.
#pragma once

#include <memory>

#include "models/model.hpp"

namespace orchard::models {

std::shared_ptr<ImageModel> make_resnet18(const ModelOptions& options);
std::shared_ptr<ImageModel> make_resnet34(const ModelOptions& options);
std::shared_ptr<ImageModel> make_resnet50(const ModelOptions& options);
std::shared_ptr<ImageModel> make_resnet101(const ModelOptions& options);
std::shared_ptr<ImageModel> make_resnet152(const ModelOptions& options);

}  // namespace orchard::models
