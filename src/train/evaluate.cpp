#include "train/evaluate.hpp"

#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "base/error.hpp"
#include "base/stop.hpp"
#include "base/text.hpp"
#include "data/transforms.hpp"

namespace orchard::train {
namespace {

torch::Tensor channel_values(const std::array<double, 3>& values, torch::Device device) {
  return torch::tensor({static_cast<float>(values[0]), static_cast<float>(values[1]),
                        static_cast<float>(values[2])})
      .view({1, 3, 1, 1})
      .to(device);
}

double largest_finite(std::span<const float> logits) {
  double largest = -std::numeric_limits<double>::infinity();
  for (const float value : logits) {
    largest = std::max(largest, static_cast<double>(value));
  }
  return largest;
}

}  // namespace

Normalization::Normalization(const config::PreprocessConfig& preprocess,
                             const device::Device& device)
    : mean(channel_values(preprocess.mean, device.torch)),
      std(channel_values(preprocess.std, device.torch)) {}

std::span<const float> row_of(const torch::Tensor& logits, std::int64_t row) {
  const auto width = static_cast<std::size_t>(logits.size(1));
  return {logits.const_data_ptr<float>() + static_cast<std::size_t>(row) * width, width};
}

torch::Tensor to_input(const data::Batch& batch, const device::Device& device,
                       const Normalization& normalization) {
  const auto keep_alive = batch.pixels;
  auto bytes = torch::from_blob(
      batch.pixels.get(), {batch.size(), batch.side_px, batch.side_px, 3}, [keep_alive](void*) {},
      torch::kUInt8);
  bytes = bytes.to(device.torch, /*non_blocking=*/device.pinned_copies);
  auto images = bytes.permute({0, 3, 1, 2});  // NHWC bytes are channels_last images
  images =
      device.channels_last ? images.to(torch::kFloat32) : images.contiguous().to(torch::kFloat32);
  return images.div_(255.0).sub_(normalization.mean).div_(normalization.std);
}

std::vector<std::int64_t> top_classes(std::span<const float> logits, std::int64_t k) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min<std::int64_t>(k, static_cast<std::int64_t>(logits.size()));
  const auto before = [&logits](std::int64_t a, std::int64_t b) {
    const float left = logits[static_cast<std::size_t>(a)];
    const float right = logits[static_cast<std::size_t>(b)];
    if (std::isnan(left) != std::isnan(right)) {
      return std::isnan(right);
    }
    return left > right || (!(left < right) && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
  order.resize(static_cast<std::size_t>(count));
  return order;
}

std::vector<double> softmax(std::span<const float> logits) {
  const double largest = largest_finite(logits);
  std::vector<double> probabilities(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    probabilities[i] = std::exp(static_cast<double>(logits[i]) - largest);
    sum += probabilities[i];
  }
  for (double& probability : probabilities) {
    probability /= sum;
  }
  return probabilities;
}

double cross_entropy(std::span<const float> logits, std::int64_t label) {
  const double largest = largest_finite(logits);
  double sum = 0;
  for (const float value : logits) {
    sum += std::exp(static_cast<double>(value) - largest);
  }
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(label)]);
}

std::int64_t num_workers(std::int64_t asked) {
  return asked >= 0 ? asked : std::max<std::int64_t>(1, std::thread::hardware_concurrency());
}

data::LoaderOptions eval_loader_options(const config::PreprocessConfig& preprocess,
                                        const config::DataConfig& data, std::int64_t batch_size,
                                        const device::Device& device) {
  return {.batch_size = batch_size,
          .workers = num_workers(data.workers),
          .prefetch_batches = data.prefetch_batches,
          .shuffle = false,
          .substitute_bad = false,
          .bad_image = data.bad_image,
          .max_bad_fraction = data.max_bad_fraction,
          .side_px = static_cast<int>(preprocess.crop_px),
          .view = [preprocess](const data::Image& image, std::uint64_t /*sample*/,
                               std::uint32_t /*epoch*/,
                               std::uint8_t* out) { data::eval_view(image, preprocess, out); },
          .exif = preprocess.exif_orientation,
          .allocate = device::batch_allocator(device)};
}

void rethrow_device_error(const std::exception& error, const device::Device& device,
                          const std::string& what, const std::string& remedy) {
  if (device::is_out_of_memory(error)) {
    std::string in_use;
    try {
      in_use =
          "; " + bytes_text(static_cast<double>(device::memory_in_use_bytes(device))) + " in use";
    } catch (const std::exception&) {
      in_use = "";  // the memory is not known; the message stands without it
    }
    throw Error(ErrorKind::Device,
                "out of memory on " + device.name + " in " + what + in_use + " (" +
                    device::first_line(error) + ")",
                remedy);
  }
  throw Error(
      ErrorKind::Device,
      "LibTorch failed on " + device.name + " in " + what + ": " + device::first_line(error),
      "try --device cpu; if it works there, this device or its driver does not support "
      "what the model needs");
}

void for_each_logits(
    const Forward& forward, data::Loader& loader, const device::Device& device,
    const config::PreprocessConfig& preprocess,
    const std::function<void(const data::Batch&, const torch::Tensor& logits)>& use) {
  const torch::NoGradGuard no_grad;
  const Normalization normalization(preprocess, device);
  loader.start(0);
  while (const auto batch = loader.next()) {
    throw_if_stopped();
    if (batch->size() == 0) {
      continue;  // every image of it was bad
    }
    torch::Tensor logits;
    try {
      logits = forward(to_input(*batch, device, normalization))
                   .to(torch::kCPU)
                   .to(torch::kFloat32)
                   .contiguous();
    } catch (const c10::Error& e) {
      rethrow_device_error(e, device,
                           str("evaluation of a batch of ", batch->size(), " images of ",
                               batch->side_px, "x", batch->side_px),
                           str("use a smaller batch: --set train.eval_batch_size=",
                               std::max<std::int64_t>(1, batch->size() / 2),
                               " (train) or --batch-size (evaluate, predict)"));
    }
    use(*batch, logits);
  }
}

EvalResult evaluate(const Forward& forward, data::Loader& loader, const device::Device& device,
                    const config::PreprocessConfig& preprocess,
                    const std::function<void(std::int64_t done)>& progress) {
  const auto begin = std::chrono::steady_clock::now();
  EvalResult result;
  for_each_logits(forward, loader, device, preprocess,
                  [&](const data::Batch& batch, const torch::Tensor& logits) {
                    for (std::int64_t i = 0; i < batch.size(); ++i) {
                      const auto row = row_of(logits, i);
                      const auto label = batch.labels[static_cast<std::size_t>(i)];
                      const auto best = top_classes(row, 5);
                      result.num_top1 += best.front() == label ? 1 : 0;
                      result.num_top5 += std::count(best.begin(), best.end(), label);
                      result.loss_sum += cross_entropy(row, label);
                    }
                    result.num_images += batch.size();
                    progress(batch.end_position);
                  });
  result.num_bad = loader.num_samples() - result.num_images;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace orchard::train
