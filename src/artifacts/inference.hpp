// A trained model ready to be asked, whatever file it came from: a checkpoint of ours or an
// exported TorchScript file.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "artifacts/checkpoint.hpp"
#include "config/config.hpp"
#include "models/model.hpp"

namespace orchard::artifacts {

struct ModelCard {
  std::string model_name;
  std::vector<std::string> classes;
  config::PreprocessConfig preprocess;
  double top1 = -1;  // validation top-1 of these weights as a fraction; -1: not known
  std::int64_t epoch = 0;
  std::string versions;  // "orchard 0.1.0, torch 2.13.0"
};

struct InferenceModel {
  ModelCard card;
  // Normalised float32 NCHW on the device -> logits [N, classes]. No gradients; evaluation mode.
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  std::filesystem::path file;
  std::string data_root;  // data.root of the run; empty for an exported file
};

// WHERE is a run folder (its best checkpoint, else its last), a checkpoint or a .ts file.
// Throws Error(Checkpoint).
InferenceModel load_for_inference(const std::filesystem::path& where, torch::Device device);

// The model of a checkpoint on the CPU, in evaluation mode, and its card.
struct CheckpointModel {
  std::shared_ptr<models::ImageModel> model;
  ModelCard card;
};
CheckpointModel load_model(const std::filesystem::path& where);

// The options of the model that a configuration asks for, on data of so many classes.
models::ModelOptions model_options(const config::ModelConfig& config, std::size_t num_data_classes,
                                   std::int64_t seed);

// Copies tensors by name into the model's parameters and buffers, in place. Throws
// Error(Checkpoint) that lists missing, unexpected and misshapen names.
void load_weights(torch::nn::Module& model, const NamedTensors& tensors);
NamedTensors named_tensors(const torch::nn::Module& model);  // shares memory with the model

}  // namespace orchard::artifacts
