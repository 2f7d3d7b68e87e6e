// Pixels and crop boxes of the data room for tests/parity/decode_parity.py; results go to stdout.
//
//   decode_probe decode ignore|apply FILE...     for each "WIDTH HEIGHT\n" and pixels, or "bad\n"
//   decode_probe boxes < CASES                   for each line WIDTH HEIGHT SEED SAMPLE EPOCH
//                                                SCALE0 SCALE1 RATIO0 RATIO1: "X Y WIDTH HEIGHT\n"
//   decode_probe train SIDE SEED EPOCH bilinear|bicubic FILE...   pixels; samples count from 0
//   decode_probe eval RESIZE CROP bilinear|bicubic FILE...        pixels
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "data/decode.hpp"
#include "data/transforms.hpp"

namespace {

using namespace orchard;

config::Interpolation filter(const std::string& name) {
  return name == "bicubic" ? config::Interpolation::Bicubic : config::Interpolation::Bilinear;
}

void write(const std::vector<std::uint8_t>& bytes) {
  std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::uint8_t> square(std::int64_t side_px) {
  return std::vector<std::uint8_t>(static_cast<std::size_t>(side_px * side_px * 3));
}

void decode(const std::vector<std::string>& args) {
  const auto exif =
      args.at(1) == "apply" ? config::ExifOrientation::Apply : config::ExifOrientation::Ignore;
  for (std::size_t i = 2; i < args.size(); ++i) {
    try {
      const auto image = data::decode_file(args[i], exif);
      std::cout << image.width << " " << image.height << "\n";
      write(image.rgb);
    } catch (const data::BadImageError&) {
      std::cout << "bad\n";
    }
  }
}

void boxes() {
  config::AugmentConfig config;
  int width = 0;
  int height = 0;
  std::uint64_t seed = 0;
  std::uint64_t sample = 0;
  std::uint32_t epoch = 0;
  while (std::cin >> width >> height >> seed >> sample >> epoch >> config.scale[0] >>
         config.scale[1] >> config.ratio[0] >> config.ratio[1]) {
    Philox draws(seed, sample, epoch, data::kViewDraws);
    const auto box = data::random_crop_box(width, height, config, draws);
    std::cout << box.x << " " << box.y << " " << box.width << " " << box.height << "\n";
  }
}

void train(const std::vector<std::string>& args) {
  config::AugmentConfig config;
  config.image_size_px = std::stoll(args.at(1));
  config.interpolation = filter(args.at(4));
  auto out = square(config.image_size_px);
  for (std::size_t i = 5; i < args.size(); ++i) {
    const Philox draws(std::stoull(args.at(2)), i - 5,
                       static_cast<std::uint32_t>(std::stoul(args.at(3))), data::kViewDraws);
    data::train_view(data::decode_file(args[i], config::ExifOrientation::Ignore), config, draws,
                     out.data());
    write(out);
  }
}

void eval(const std::vector<std::string>& args) {
  config::PreprocessConfig config;
  config.resize_px = std::stoll(args.at(1));
  config.crop_px = std::stoll(args.at(2));
  config.interpolation = filter(args.at(3));
  auto out = square(config.crop_px);
  for (std::size_t i = 4; i < args.size(); ++i) {
    data::eval_view(data::decode_file(args[i], config::ExifOrientation::Ignore), config,
                    out.data());
    write(out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    const std::string what = args.at(0);
    what == "decode"  ? decode(args)
    : what == "boxes" ? boxes()
    : what == "train" ? train(args)
                      : eval(args);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
