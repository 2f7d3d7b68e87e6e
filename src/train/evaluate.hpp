// Running a model over images: what evaluation during training, `orchard evaluate` and `orchard
// predict` have in common. The numbers are taken from the logits on the host, in one place, so that
// an accuracy counted from predictions equals the one that evaluation reports.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "config/config.hpp"
#include "data/loader.hpp"
#include "device/device.hpp"

namespace orchard::train {

// Mean and standard deviation of the channels on the device, float32 [1, 3, 1, 1]. Made once: a
// step copies nothing but images and labels.
struct Normalization {
  torch::Tensor mean;
  torch::Tensor std;

  Normalization(const config::PreprocessConfig& preprocess, const device::Device& device);
};

// uint8 NHWC pixels -> normalised float32 NCHW on the device: (pixel / 255 - mean) / std. The bytes
// are copied as they are and become floats there.
torch::Tensor to_input(const data::Batch& batch, const device::Device& device,
                       const Normalization& normalization);

// The logits of one image of a batch: `logits` is float32 [N, classes] on the CPU, contiguous.
std::span<const float> row_of(const torch::Tensor& logits, std::int64_t row);

// Classes by falling logit, at most k. Of equal logits the lower class comes first; NaN comes last.
std::vector<std::int64_t> top_classes(std::span<const float> logits, std::int64_t k);
std::vector<double> softmax(std::span<const float> logits);
double cross_entropy(std::span<const float> logits, std::int64_t label);  // natural log

struct EvalResult {
  std::int64_t num_images = 0;  // read and counted
  std::int64_t num_bad = 0;     // could not be read, left out
  std::int64_t num_top1 = 0;
  std::int64_t num_top5 = 0;  // correct among the best 5 (or all, when there are fewer classes)
  double loss_sum = 0;
  double seconds = 0;

  double top1() const { return ratio(static_cast<double>(num_top1)); }
  double top5() const { return ratio(static_cast<double>(num_top5)); }
  double loss() const { return ratio(loss_sum); }

 private:
  double ratio(double sum) const {
    return num_images == 0 ? 0.0 : sum / static_cast<double>(num_images);
  }
};

using Forward = std::function<torch::Tensor(const torch::Tensor&)>;

// A loader for evaluation: every image once, in the folder's order, bad ones left out.
data::LoaderOptions eval_loader_options(const config::PreprocessConfig& preprocess,
                                        const config::DataConfig& data, std::int64_t batch_size,
                                        const device::Device& device);

// Calls `use` with each batch and its logits (float32 [N, classes] on the CPU), in order. Running
// out of memory becomes an Error(Device) that says what to do.
void for_each_logits(
    const Forward& forward, data::Loader& loader, const device::Device& device,
    const config::PreprocessConfig& preprocess,
    const std::function<void(const data::Batch&, const torch::Tensor& logits)>& use);

EvalResult evaluate(const Forward& forward, data::Loader& loader, const device::Device& device,
                    const config::PreprocessConfig& preprocess,
                    const std::function<void(std::int64_t done)>& progress);

// The workers to start for `asked` (-1: one per core).
std::int64_t num_workers(std::int64_t asked);

// An Error(Device) for an exception that LibTorch threw while it computed `what`.
[[noreturn]] void rethrow_device_error(const std::exception& error, const device::Device& device,
                                       const std::string& what, const std::string& remedy);

}  // namespace orchard::train
