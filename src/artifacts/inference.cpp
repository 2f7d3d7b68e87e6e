#include "artifacts/inference.hpp"

#include <torch/torch.h>

#include <stdexcept>
#include <utility>

#include "artifacts/pth.hpp"
#include "artifacts/run_folder.hpp"
#include "artifacts/torchscript.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "config/load.hpp"

namespace orchard::artifacts {
namespace {

struct Loaded {
  CheckpointModel model;
  std::string data_root;
};

std::string versions_text(const std::map<std::string, std::string>& versions) {
  std::vector<std::string> parts;
  for (const auto& [name, version] : versions) {
    parts.push_back(name + " " + version);
  }
  return join(parts, ", ");
}

std::filesystem::path file_of(const std::filesystem::path& where) {
  std::error_code code;
  return std::filesystem::is_directory(where, code) ? find_best(where) : where;
}

Loaded load(const std::filesystem::path& file) {
  const TrainState state = load_checkpoint(file);
  const auto fail = [&](const std::string& reason, const std::string& remedy) -> Error {
    return {ErrorKind::Checkpoint, str("cannot use '", file.string(), "': ", reason), remedy};
  };
  Loaded loaded;
  config::Config config;
  try {
    config = config::load_text(state.config_json, file.string(), {});
  } catch (const Error& e) {
    throw fail(str("its configuration is not valid here: ", e.what()), e.remedy());
  }
  try {
    loaded.model.model =
        models::make_model(model_options(config.model, state.classes.size(), config.seed));
  } catch (const std::invalid_argument& e) {
    throw fail(e.what(), "use the Orchard that wrote the file, or a newer one");
  }
  try {
    load_weights(*loaded.model.model, state.model);
  } catch (const Error& e) {
    throw fail(e.what(), e.remedy());
  }
  loaded.model.model->eval();
  loaded.data_root = config.data.root;

  ModelCard& card = loaded.model.card;
  card.model_name = config.model.name;
  card.classes = state.classes;
  card.preprocess = config.preprocess;
  card.epoch = state.epoch;
  // The best metric belongs to these weights only if nothing was trained since it was measured.
  card.top1 = state.position == 0 && state.epoch == state.best_epoch ? state.best_metric : -1;
  card.versions = versions_text(state.versions);
  return loaded;
}

}  // namespace

InferenceModel load_for_inference(const std::filesystem::path& where, torch::Device device) {
  const std::filesystem::path file = file_of(where);
  require_torch_file(file);
  if (is_torchscript(file)) {
    return load_torchscript(file, device);
  }
  Loaded loaded = load(file);
  InferenceModel result;
  result.card = std::move(loaded.model.card);
  result.file = file;
  result.data_root = std::move(loaded.data_root);
  const auto model = std::move(loaded.model.model);
  model->to(device);
  result.forward = [model](const torch::Tensor& images) {
    const torch::NoGradGuard no_grad;
    return model->forward(images);
  };
  return result;
}

CheckpointModel load_model(const std::filesystem::path& where) {
  return load(file_of(where)).model;
}

models::ModelOptions model_options(const config::ModelConfig& config, std::size_t num_data_classes,
                                   std::int64_t seed) {
  return {.name = config.name,
          .num_classes = config.num_classes > 0 ? config.num_classes
                                                : static_cast<std::int64_t>(num_data_classes),
          .zero_init_residual = config.zero_init_residual,
          .width_mult = config.width_mult,
          .dropout = config.dropout,
          .seed = static_cast<std::uint64_t>(seed)};
}

void load_weights(torch::nn::Module& model, const NamedTensors& tensors) {
  const NamedTensors own = named_tensors(model);
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> misshapen;
  for (const auto& [name, tensor] : own) {
    const auto given = tensors.find(name);
    if (given == tensors.end()) {
      missing.push_back(name);
    } else if (given->second.sizes() != tensor.sizes()) {
      misshapen.push_back(
          orchard::str(name, " (", given->second.sizes(), " instead of ", tensor.sizes(), ")"));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!own.contains(name)) {
      unexpected.push_back(name);
    }
  }
  std::vector<std::string> problems;
  for (const auto& [what, names] :
       {std::pair{"missing", missing}, std::pair{"unexpected", unexpected},
        std::pair{"of another shape", misshapen}}) {
    if (!names.empty()) {
      problems.push_back(str(names.size(), " ", what, ": ", some_of(names)));
    }
  }
  if (!problems.empty()) {
    throw Error(ErrorKind::Checkpoint,
                str("the weights do not fit the model: ", join(problems, "; ")),
                "use weights of the same model.name, options and number of classes");
  }
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : own) {
    torch::Tensor target = tensor;
    target.copy_(tensors.at(name));
  }
}

NamedTensors named_tensors(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& parameter : model.named_parameters()) {
    tensors.emplace(parameter.key(), parameter.value());
  }
  for (const auto& buffer : model.named_buffers()) {
    tensors.emplace(buffer.key(), buffer.value());
  }
  return tensors;
}

}  // namespace orchard::artifacts
