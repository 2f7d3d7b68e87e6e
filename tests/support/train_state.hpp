// A train state whose every value follows from its step, so that a file can be held against the
// state it claims to be.
#pragma once

#include <torch/torch.h>

#include "artifacts/checkpoint.hpp"

namespace orchard {

inline artifacts::TrainState make_state(std::int64_t step, std::int64_t numel = 1000) {
  artifacts::TrainState state;
  const auto values = torch::arange(numel, torch::kFloat) + static_cast<double>(step) * 0.37;
  state.model = {{"conv.weight", values}, {"bn.num_batches_tracked", torch::tensor(step)}};
  state.optimizer_name = "sgd";
  state.optimizer = {{"conv.weight", {{"momentum_buffer", -values}}}, {"fc.bias", {}}};
  state.generators = {{"cpu", (torch::arange(64) + step).to(torch::kByte)}};
  state.epoch = step / 10;
  state.position = step % 10 * 32;
  state.step = step;
  state.epoch_loss_sum = 0.1 * static_cast<double>(step) + 1e-17;
  state.epoch_correct = 3 * step;
  state.epoch_samples = 32 * step;
  state.epoch_seconds = 1.0 / 3.0;
  state.best_metric = 0.7531 + 1e-16;
  state.best_epoch = step / 10;
  state.config_json = "{\"model\": {\"name\": \"resnet18\"}}\n";
  state.classes = {"cat", "dög", "a, \"quoted\" name", "caf\xE9"};
  state.data_fingerprint = "f00d";
  state.versions = {{"orchard", "0.1.0"}, {"torch", "2.13.0"}};
  state.skipped_images = {{"train/cat/\xFF\xFE.jpg", "it is cut off"}};
  return state;
}

}  // namespace orchard
