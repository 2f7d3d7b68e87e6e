// Everything needed to go on with a run as if it had never stopped.
#pragma once

#include <torch/types.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace orchard::artifacts {

using NamedTensors = std::map<std::string, torch::Tensor>;

struct TrainState {
  NamedTensors model;  // parameters and buffers by their full names
  std::string optimizer_name;
  std::map<std::string, NamedTensors>
      optimizer;            // parameter name -> "momentum_buffer", ... -> tensor
  NamedTensors generators;  // device type ("cpu", "cuda") -> state bytes

  std::int64_t epoch = 0;     // the epoch in progress, from 0; == epochs when the run is finished
  std::int64_t position = 0;  // samples of that epoch already used
  std::int64_t step = 0;      // optimizer steps made in all
  // Sums over the part of the epoch already done, so that its row comes out as if uninterrupted.
  double epoch_loss_sum = 0;
  std::int64_t epoch_correct = 0;
  std::int64_t epoch_samples = 0;
  double epoch_seconds = 0;

  double best_metric = -1;       // validation top-1 as a fraction; -1: none yet
  std::int64_t best_epoch = -1;  // number of epochs done when it was measured

  std::string config_json;
  std::vector<std::string> classes;
  std::string data_fingerprint;
  std::map<std::string, std::string> versions;        // "orchard", "torch"
  std::map<std::string, std::string> skipped_images;  // path -> reason
};

// The file is a plain dict (see artifacts/pth.hpp): in Python,
//   model.load_state_dict(torch.load(file, weights_only=True)["model"])
// All three throw Error(Checkpoint), naming the file and what is wrong with it.
void save_checkpoint(const std::filesystem::path& path, const TrainState& state);
TrainState load_checkpoint(const std::filesystem::path& path);

// How far a checkpoint is, without reading its tensors (which are then not checked either).
struct Progress {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;
  auto operator<=>(const Progress&) const = default;
};
Progress read_progress(const std::filesystem::path& path);

}  // namespace orchard::artifacts
