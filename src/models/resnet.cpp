#include "models/resnet.hpp"

#include <torch/nn/modules/container/sequential.h>

#include <array>

#include "models/init.hpp"

namespace orchard::models {
namespace {

namespace nn = torch::nn;

nn::Sequential make_downsample(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
}

// Both kinds of block: `last_norm` is what zero_init_residual starts at zero.
struct BlockBase : nn::Module {
  nn::Sequential downsample{nullptr};

  torch::Tensor shortcut(const torch::Tensor& x) {
    return downsample.is_empty() ? x : downsample->forward(x);
  }
  virtual torch::Tensor forward(torch::Tensor x) = 0;
  virtual torch::Tensor& last_norm_weight() = 0;
};

struct BasicBlockImpl : BlockBase {
  static constexpr std::int64_t kExpansion = 1;
  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d bn1, bn2;

  BasicBlockImpl(std::int64_t in, std::int64_t planes, std::int64_t stride)
      : conv1(conv(in, planes, 3, stride)),
        conv2(conv(planes, planes, 3)),
        bn1(planes),
        bn2(planes) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (stride != 1 || in != planes) {
      downsample = register_module("downsample", make_downsample(in, planes, stride));
    }
  }
  torch::Tensor forward(torch::Tensor x) override {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y));
    return y.add_(shortcut(x)).relu_();
  }
  torch::Tensor& last_norm_weight() override { return bn2->weight; }
};
TORCH_MODULE(BasicBlock);

struct BottleneckImpl : BlockBase {
  static constexpr std::int64_t kExpansion = 4;
  nn::Conv2d conv1, conv2, conv3;
  nn::BatchNorm2d bn1, bn2, bn3;

  BottleneckImpl(std::int64_t in, std::int64_t planes, std::int64_t stride)
      : conv1(conv(in, planes, 1)),
        conv2(conv(planes, planes, 3, stride)),
        conv3(conv(planes, planes * kExpansion, 1)),
        bn1(planes),
        bn2(planes),
        bn3(planes * kExpansion) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("conv3", conv3);
    register_module("bn3", bn3);
    if (stride != 1 || in != planes * kExpansion) {
      downsample = register_module("downsample", make_downsample(in, planes * kExpansion, stride));
    }
  }
  torch::Tensor forward(torch::Tensor x) override {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    return y.add_(shortcut(x)).relu_();
  }
  torch::Tensor& last_norm_weight() override { return bn3->weight; }
};
TORCH_MODULE(Bottleneck);

template <class Block>
class ResNet : public ImageModel {
 public:
  ResNet(const std::array<std::int64_t, 4>& depths, const ModelOptions& options)
      : in_(width(64, options)),
        conv1_(conv(3, in_, 7, 2)),
        bn1_(in_),
        fc_(width(512, options) * Block::Impl::kExpansion, options.num_classes) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    for (std::size_t stage = 0; stage < layers_.size(); ++stage) {
      layers_.at(stage) = register_module(
          "layer" + std::to_string(stage + 1),
          make_layer(width(64U << stage, options), depths.at(stage), stage == 0 ? 1 : 2));
    }
    register_module("fc", fc_);
    initialise(*this, options.seed, 0);
    if (options.zero_init_residual) {
      const torch::NoGradGuard no_grad;
      for (const auto& module : modules(false)) {
        if (auto* block = dynamic_cast<BlockBase*>(module.get())) {
          block->last_norm_weight().fill_(0.0);
        }
      }
    }
  }

  torch::Tensor forward(torch::Tensor images) override {
    auto x = bn1_(conv1_(images)).relu_();
    x = torch::max_pool2d(x, {3, 3}, {2, 2}, {1, 1}, {1, 1});
    for (auto& layer : layers_) {
      x = layer->forward(x);
    }
    x = torch::flatten(torch::adaptive_avg_pool2d(x, {1, 1}), 1);
    return fc_(x);
  }

 private:
  static std::int64_t width(std::int64_t channels, const ModelOptions& options) {
    return round_channels(static_cast<double>(channels) * options.width_mult);
  }

  nn::Sequential make_layer(std::int64_t planes, std::int64_t depth, std::int64_t stride) {
    nn::Sequential layer;
    for (std::int64_t i = 0; i < depth; ++i) {
      layer->push_back(Block(in_, planes, i == 0 ? stride : 1));
      in_ = planes * Block::Impl::kExpansion;
    }
    return layer;
  }

  std::int64_t in_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  std::array<nn::Sequential, 4> layers_;
  nn::Linear fc_;
};

}  // namespace

std::shared_ptr<ImageModel> make_resnet18(const ModelOptions& options) {
  return std::make_shared<ResNet<BasicBlock>>(std::array<std::int64_t, 4>{2, 2, 2, 2}, options);
}
std::shared_ptr<ImageModel> make_resnet34(const ModelOptions& options) {
  return std::make_shared<ResNet<BasicBlock>>(std::array<std::int64_t, 4>{3, 4, 6, 3}, options);
}
std::shared_ptr<ImageModel> make_resnet50(const ModelOptions& options) {
  return std::make_shared<ResNet<Bottleneck>>(std::array<std::int64_t, 4>{3, 4, 6, 3}, options);
}
std::shared_ptr<ImageModel> make_resnet101(const ModelOptions& options) {
  return std::make_shared<ResNet<Bottleneck>>(std::array<std::int64_t, 4>{3, 4, 23, 3}, options);
}
std::shared_ptr<ImageModel> make_resnet152(const ModelOptions& options) {
  return std::make_shared<ResNet<Bottleneck>>(std::array<std::int64_t, 4>{3, 8, 36, 3}, options);
}

}  // namespace orchard::models
