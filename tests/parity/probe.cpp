// Numbers of our rooms for inputs that Python wrote, so that tests/parity can compare them with
// torchvision, Pillow and torch. Files go through artifacts/pth, which both sides read.
//
//   parity_probe resize IN.pth OUT.pth      cases of {image, box, size, window, cubic} -> list of
//   pixels parity_probe views IN.pth OUT.pth       {files, resize, crop, cubic} -> pixels of
//   eval_view parity_probe names MODEL WIDTH OUT.pth  name -> shape, in our order parity_probe
//   steps IN.pth OUT.pth       a model, a batch and an optimizer -> logits, gradients, weights
//   parity_probe schedule IN.pth OUT.pth    a schedule -> learning rates
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "artifacts/inference.hpp"
#include "artifacts/pth.hpp"
#include "config/load.hpp"
#include "data/decode.hpp"
#include "data/resample.hpp"
#include "data/transforms.hpp"
#include "models/model.hpp"
#include "train/optimizer.hpp"
#include "train/schedule.hpp"

namespace {

using namespace orchard;
using Dict = c10::impl::GenericDict;

config::Interpolation filter(bool cubic) {
  return cubic ? config::Interpolation::Bicubic : config::Interpolation::Bilinear;
}

std::vector<std::int64_t> ints(const c10::IValue& list) {
  std::vector<std::int64_t> values;
  for (const auto& value : list.toListRef()) {
    values.push_back(value.toInt());
  }
  return values;
}

data::Box box_of(const c10::IValue& list) {
  const auto v = ints(list);
  return {static_cast<int>(v[0]), static_cast<int>(v[1]), static_cast<int>(v[2]),
          static_cast<int>(v[3])};
}

c10::IValue resize_cases(const Dict& in) {
  c10::impl::GenericList out(c10::AnyType::get());
  for (const auto& item : in.at("cases").toListRef()) {
    const auto entry = item.toGenericDict();
    const auto image = entry.at("image").toTensor().contiguous();
    const auto size = ints(entry.at("size"));
    const auto window = box_of(entry.at("window"));
    auto pixels = torch::empty({window.height, window.width, 3}, torch::kUInt8);
    data::resize({image.const_data_ptr<std::uint8_t>(), static_cast<int>(image.size(1)),
                  static_cast<int>(image.size(0))},
                 box_of(entry.at("box")), static_cast<int>(size[0]), static_cast<int>(size[1]),
                 window, filter(entry.at("cubic").toBool()),
                 pixels.mutable_data_ptr<std::uint8_t>());
    out.push_back(pixels);
  }
  return out;
}

c10::IValue eval_views(const Dict& in) {
  config::PreprocessConfig preprocess;
  preprocess.resize_px = in.at("resize").toInt();
  preprocess.crop_px = in.at("crop").toInt();
  preprocess.interpolation = filter(in.at("cubic").toBool());
  c10::impl::GenericList out(c10::AnyType::get());
  for (const auto& file : in.at("files").toListRef()) {
    const auto image = data::decode_file(file.toStringRef(), config::ExifOrientation::Ignore);
    auto pixels = torch::empty({preprocess.crop_px, preprocess.crop_px, 3}, torch::kUInt8);
    data::eval_view(image, preprocess, pixels.mutable_data_ptr<std::uint8_t>());
    out.push_back(pixels);
  }
  return out;
}

c10::IValue names(const std::string& model_name, const std::string& width) {
  const auto model = models::make_model({.name = model_name, .width_mult = std::stod(width)});
  c10::impl::GenericList parameters(c10::AnyType::get());
  auto shapes = artifacts::new_dict();
  for (const auto& item : model->named_parameters()) {
    parameters.push_back(item.key());
  }
  for (const auto& [name, tensor] : artifacts::named_tensors(*model)) {
    c10::impl::GenericList shape(c10::AnyType::get());
    for (const auto size : tensor.sizes()) {
      shape.push_back(size);
    }
    shapes.insert(name, shape);
  }
  auto out = artifacts::new_dict();
  out.insert("parameters", parameters);
  out.insert("shapes", shapes);
  return out;
}

c10::IValue tensors(const artifacts::NamedTensors& named) {
  auto out = artifacts::new_dict();
  for (const auto& [name, tensor] : named) {
    out.insert(name, tensor.detach().clone());
  }
  return out;
}

c10::IValue train_steps(const Dict& in) {
  const auto model = models::make_model({.name = in.at("model").toStringRef(),
                                         .num_classes = in.at("num_classes").toInt(),
                                         .dropout = 0.0});
  artifacts::NamedTensors weights;
  for (const auto& item : in.at("weights").toGenericDict()) {
    weights[item.key().toStringRef()] = item.value().toTensor();
  }
  artifacts::load_weights(*model, weights);
  if (in.at("channels_last").toBool()) {
    for (auto& parameter : model->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
  const auto images = in.at("images").toTensor();
  const auto labels = in.at("labels").toTensor();
  auto out = artifacts::new_dict();
  {
    const torch::NoGradGuard no_grad;
    model->eval();
    out.insert("logits", model->forward(images));
  }
  model->train();
  config::OptimizerConfig config;
  config.momentum = in.at("momentum").toDouble();
  config.nesterov = in.at("nesterov").toBool();
  config.weight_decay = in.at("weight_decay").toDouble();
  config.decay_norm_and_bias = in.at("decay_norm_and_bias").toBool();
  train::Optimizer optimizer(config, *model);
  c10::impl::GenericList losses(c10::AnyType::get());
  for (std::int64_t step = 0; step < in.at("num_steps").toInt(); ++step) {
    const auto loss =
        torch::cross_entropy_loss(model->forward(images), labels, {}, at::Reduction::Mean, -100,
                                  in.at("label_smoothing").toDouble());
    losses.push_back(loss.detach());
    loss.backward();
    if (step == 0) {
      artifacts::NamedTensors gradients;
      for (const auto& item : model->named_parameters()) {
        gradients[item.key()] = item.value().grad();
      }
      out.insert("gradients", tensors(gradients));
      out.insert("after_one_forward", tensors(artifacts::named_tensors(*model)));
    }
    optimizer.step(in.at("lr").toDouble());
    optimizer.zero_grad();
  }
  out.insert("losses", losses);
  out.insert("weights", tensors(artifacts::named_tensors(*model)));
  return out;
}

c10::IValue schedule(const Dict& in) {
  const auto config = config::load_text(in.at("config").toStringRef(), "schedule", {});
  const auto total = in.at("total_steps").toInt();
  c10::impl::GenericList out(c10::AnyType::get());
  for (std::int64_t step = 0; step < total; ++step) {
    out.push_back(train::learning_rate(config.schedule, config.optimizer.lr, step,
                                       in.at("steps_per_epoch").toInt(), total));
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.at(0) == "names") {
      artifacts::write_pth(args.at(3), names(args.at(1), args.at(2)));
      return 0;
    }
    const auto in = artifacts::read_pth(args.at(1)).toGenericDict();
    const auto out = args[0] == "resize"     ? resize_cases(in)
                     : args[0] == "views"    ? eval_views(in)
                     : args[0] == "schedule" ? schedule(in)
                                             : train_steps(in);
    artifacts::write_pth(args.at(2), out);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
