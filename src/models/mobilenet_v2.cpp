#include "models/mobilenet_v2.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>

#include <algorithm>
#include <array>

#include "models/init.hpp"

namespace orchard::models {
namespace {

namespace nn = torch::nn;

// A sequence that fits into another one: nn::Sequential's own forward is a template.
struct ConvNormRelu6Impl : nn::SequentialImpl {
  ConvNormRelu6Impl(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                    std::int64_t groups)
      : nn::SequentialImpl(conv(in, out, kernel, stride, groups), nn::BatchNorm2d(out),
                           nn::ReLU6(nn::ReLU6Options().inplace(true))) {}

  torch::Tensor forward(torch::Tensor x) { return nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(ConvNormRelu6);

struct InvertedResidualImpl : nn::Module {
  nn::Sequential block;
  bool has_shortcut;

  InvertedResidualImpl(std::int64_t in, std::int64_t out, std::int64_t stride,
                       std::int64_t expansion)
      : has_shortcut(stride == 1 && in == out) {
    const std::int64_t hidden = in * expansion;
    if (expansion != 1) {
      block->push_back(ConvNormRelu6(in, hidden, 1, 1, 1));
    }
    block->push_back(ConvNormRelu6(hidden, hidden, 3, stride, hidden));
    block->push_back(conv(hidden, out, 1));
    block->push_back(nn::BatchNorm2d(out));
    register_module("conv", block);
  }
  torch::Tensor forward(torch::Tensor x) {
    auto y = block->forward(x);
    return has_shortcut ? y.add_(x) : y;
  }
};
TORCH_MODULE(InvertedResidual);

struct Row {
  std::int64_t expansion, channels, repeats, stride;
};
constexpr std::array<Row, 7> kRows = {{{1, 16, 1, 1},
                                       {6, 24, 2, 2},
                                       {6, 32, 3, 2},
                                       {6, 64, 4, 2},
                                       {6, 96, 3, 1},
                                       {6, 160, 3, 2},
                                       {6, 320, 1, 1}}};

class MobileNetV2 : public ImageModel {
 public:
  explicit MobileNetV2(const ModelOptions& options) {
    std::int64_t in = round_channels(32 * options.width_mult);
    const std::int64_t last = round_channels(1280 * std::max(1.0, options.width_mult));
    features_->push_back(ConvNormRelu6(3, in, 3, 2, 1));
    for (const auto& row : kRows) {
      const auto out = round_channels(static_cast<double>(row.channels) * options.width_mult);
      for (std::int64_t i = 0; i < row.repeats; ++i) {
        features_->push_back(InvertedResidual(in, out, i == 0 ? row.stride : 1, row.expansion));
        in = out;
      }
    }
    features_->push_back(ConvNormRelu6(in, last, 1, 1, 1));
    classifier_->push_back(nn::Dropout(options.dropout));
    classifier_->push_back(nn::Linear(last, options.num_classes));
    register_module("features", features_);
    register_module("classifier", classifier_);
    initialise(*this, options.seed, 0.01);
  }

  torch::Tensor forward(torch::Tensor images) override {
    auto x = features_->forward(images);
    x = torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1);
    return classifier_->forward(x);
  }

 private:
  nn::Sequential features_;
  nn::Sequential classifier_;
};

}  // namespace

std::shared_ptr<ImageModel> make_mobilenet_v2(const ModelOptions& options) {
  return std::make_shared<MobileNetV2>(options);
}

}  // namespace orchard::models
