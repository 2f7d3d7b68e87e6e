// TorchScript files: traced, weights as attributes (not constants), opened by torch.jit.load in
// Python and C++ on any device. The card travels inside as extra files "orchard.json" and
// "classes.txt".
#pragma once

#include <filesystem>

#include "artifacts/inference.hpp"

namespace orchard::artifacts {

struct ExportCheck {
  std::int64_t batch_size;
  double max_abs_difference;  // of the logits, against the model it was made from
};

// `model` is on the CPU; it is left as it was, training mode and all. Class names must be UTF-8.
// Writes `path` atomically, reads it back and compares its logits with the model's on `images`
// (normalised float32 NCHW on the CPU, at least 7) at batch 1, 3 and 7. Throws Error(Checkpoint)
// and leaves no file when they differ by more than 1e-5 of the largest logit.
std::vector<ExportCheck> export_torchscript(models::ImageModel& model, const ModelCard& card,
                                            const torch::Tensor& images,
                                            const std::filesystem::path& path);

// Throws Error(Checkpoint), also for a TorchScript file that has no card of ours.
InferenceModel load_torchscript(const std::filesystem::path& path, torch::Device device);

}  // namespace orchard::artifacts
