#include "models/model.hpp"

#include <array>
#include <stdexcept>

#include "base/text.hpp"
#include "models/init.hpp"
#include "models/mobilenet_v2.hpp"
#include "models/resnet.hpp"

namespace orchard::models {
namespace {

struct Row {
  const char* name;
  std::shared_ptr<ImageModel> (*build)(const ModelOptions&);
};

// A new model is a file pair, a row here and a config.
constexpr std::array kModels = {
    Row{"resnet18", make_resnet18},   Row{"resnet34", make_resnet34},
    Row{"resnet50", make_resnet50},   Row{"resnet101", make_resnet101},
    Row{"resnet152", make_resnet152}, Row{"mobilenet_v2", make_mobilenet_v2},
};

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& row : kModels) {
    names.emplace_back(row.name);
  }
  return names;
}

std::shared_ptr<ImageModel> make_model(const ModelOptions& options) {
  for (const auto& row : kModels) {
    if (options.name == row.name) {
      const KeepGlobalGenerator keep;
      return row.build(options);
    }
  }
  throw std::invalid_argument("unknown model '" + options.name + "'" +
                              did_you_mean(options.name, model_names()) + " (the models are " +
                              join(model_names(), ", ") + ")");
}

std::int64_t num_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace orchard::models
