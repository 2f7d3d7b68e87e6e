// Numbers of our rooms for inputs that Python wrote, so that tests/parity can compare them with
// torchvision, Pillow and torch. Files go through artifacts/pth, which both sides read.
//
//   data_probe resize IN.pth OUT.pth      cases of {image, box, size, window, cubic} -> list of
//   pixels data_probe views IN.pth OUT.pth       {files, resize, crop, cubic} -> pixels of
//   eval_view data_probe names MODEL WIDTH OUT.pth  name -> shape, in our order data_probe
//   steps IN.pth OUT.pth       a model, a batch and an optimizer -> logits, gradients, weights
//   data_probe schedule IN.pth OUT.pth    a schedule -> learning rates
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "artifacts/pth.hpp"
#include "data/decode.hpp"
#include "data/resample.hpp"
#include "data/transforms.hpp"

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

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    const auto in = artifacts::read_pth(args.at(1)).toGenericDict();
    const auto out = args.at(0) == "resize" ? resize_cases(in) : eval_views(in);
    artifacts::write_pth(args.at(2), out);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
