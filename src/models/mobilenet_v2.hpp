// MobileNetV2 (Sandler et al., arXiv 1801.04381) as torchvision builds it.
#pragma once

#include <memory>

#include "models/model.hpp"

namespace orchard::models {

std::shared_ptr<ImageModel> make_mobilenet_v2(const ModelOptions& options);

}  // namespace orchard::models
