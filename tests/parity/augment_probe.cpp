// Numbers of data/color_ops and data/augment for inputs that Python wrote, so that
// augment_parity.py can compare them with torchvision on Pillow images.
//
//   augment_probe ops < CASES > PIXELS     each case: a line "NAME VALUE KERNEL_PX R G B WIDTH
//                                          HEIGHT", then the pixels
//   augment_probe values SIDE_PX...        lines "POLICY NAME BIN SIDE_PX VALUE"
//   augment_probe views CONFIG SIDE_PX SEED COUNT < PIXELS
//                                          for samples 0..COUNT-1 a line of the steps, each
//                                          "NAME VALUE X Y WIDTH HEIGHT", then the view's pixels
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "config/load.hpp"
#include "data/augment.hpp"
#include "data/color_ops.hpp"

namespace {

using namespace orchard;
using data::Op;

constexpr std::array kNames = {std::pair{Op::Identity, "Identity"},
                               std::pair{Op::ShearX, "ShearX"},
                               std::pair{Op::ShearY, "ShearY"},
                               std::pair{Op::TranslateX, "TranslateX"},
                               std::pair{Op::TranslateY, "TranslateY"},
                               std::pair{Op::Rotate, "Rotate"},
                               std::pair{Op::Brightness, "Brightness"},
                               std::pair{Op::Saturation, "Color"},
                               std::pair{Op::Contrast, "Contrast"},
                               std::pair{Op::Sharpness, "Sharpness"},
                               std::pair{Op::Posterize, "Posterize"},
                               std::pair{Op::Solarize, "Solarize"},
                               std::pair{Op::AutoContrast, "AutoContrast"},
                               std::pair{Op::Equalize, "Equalize"},
                               std::pair{Op::Invert, "Invert"},
                               std::pair{Op::Hue, "Hue"},
                               std::pair{Op::Grayscale, "Grayscale"},
                               std::pair{Op::Blur, "Blur"},
                               std::pair{Op::FlipVertical, "FlipVertical"},
                               std::pair{Op::Erase, "Erase"}};

Op op_named(const std::string& wanted) {
  for (const auto& [op, name] : kNames) {
    if (wanted == name) {
      return op;
    }
  }
  throw std::runtime_error("no operation is named " + wanted);
}

std::string name_of(Op wanted) {
  for (const auto& [op, name] : kNames) {
    if (op == wanted) {
      return name;
    }
  }
  return "?";
}

std::string exact(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%a", value);
  return text.data();
}

std::vector<std::uint8_t> read_pixels(int width, int height) {
  std::vector<std::uint8_t> rgb(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) *
                                3);
  std::cin.read(reinterpret_cast<char*>(rgb.data()), static_cast<std::streamsize>(rgb.size()));
  if (static_cast<std::size_t>(std::cin.gcount()) != rgb.size()) {
    throw std::runtime_error("the pixels end early");
  }
  return rgb;
}

void write(const std::vector<std::uint8_t>& rgb) {
  std::cout.write(reinterpret_cast<const char*>(rgb.data()),
                  static_cast<std::streamsize>(rgb.size()));
}

void ops() {
  std::string name;
  std::string value;
  config::AugmentConfig config;
  std::array<int, 3> color{};
  int width = 0;
  int height = 0;
  while (std::cin >> name >> value >> config.blur_kernel_px >> color[0] >> color[1] >> color[2] >>
         width >> height) {
    std::cin.ignore();
    auto rgb = read_pixels(width, height);
    const data::Canvas canvas = {.rgb = rgb.data(), .width = width, .height = height};
    const double number = std::strtod(value.c_str(), nullptr);
    const data::Rgb fill = {static_cast<std::uint8_t>(color[0]),
                            static_cast<std::uint8_t>(color[1]),
                            static_cast<std::uint8_t>(color[2])};
    switch (const Op op = op_named(name)) {  // apply_step fills with black
      case Op::ShearX:
        data::shear_x(canvas, number, fill);
        break;
      case Op::ShearY:
        data::shear_y(canvas, number, fill);
        break;
      case Op::TranslateX:
        data::translate(canvas, static_cast<int>(number), 0, fill);
        break;
      case Op::TranslateY:
        data::translate(canvas, 0, static_cast<int>(number), fill);
        break;
      case Op::Rotate:
        data::rotate(canvas, number, fill);
        break;
      default:
        data::apply_step({.op = op, .value = number}, config, {}, canvas);
    }
    write(rgb);
  }
}

void values(const std::vector<std::string>& args) {
  for (std::size_t i = 1; i < args.size(); ++i) {
    const int side_px = std::stoi(args[i]);
    for (const auto& [policy, policy_name] : config::Choices<config::AugmentPolicy>::kAll) {
      const int bins = policy == config::AugmentPolicy::AutoAugment ? 10 : 31;
      for (const auto& [op, name] : kNames) {
        for (int bin = 0; bin < bins; ++bin) {
          for (const bool is_negative : {false, true}) {
            std::cout << policy_name << " " << name << " " << bin << " " << is_negative << " "
                      << side_px << " "
                      << exact(data::policy_value(policy, op, bin, is_negative, side_px)) << "\n";
          }
        }
      }
    }
  }
}

void views(const std::vector<std::string>& args) {
  const auto config = config::load_text(args.at(1), "the test's config", {});
  const int side_px = std::stoi(args.at(2));
  const std::uint64_t seed = std::stoull(args.at(3));
  const std::uint64_t count = std::stoull(args.at(4));
  const auto image = read_pixels(side_px, side_px);
  for (std::uint64_t sample = 0; sample < count; ++sample) {
    const Philox draws(seed, sample, 0, 1);
    for (const auto& step : data::draw_steps(config.augment, side_px, draws)) {
      std::cout << name_of(step.op) << " " << exact(step.value) << " " << step.box.x << " "
                << step.box.y << " " << step.box.width << " " << step.box.height << " ";
    }
    std::cout << "\n";
    auto rgb = image;
    data::augment_view(rgb.data(), side_px, config.augment, config.preprocess.mean, draws);
    write(rgb);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  std::ios::sync_with_stdio(false);
  try {
    if (args.at(0) == "ops") {
      ops();
    } else if (args.at(0) == "values") {
      values(args);
    } else if (args.at(0) == "views") {
      views(args);
    } else {
      throw std::runtime_error("unknown: " + args.at(0));
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
