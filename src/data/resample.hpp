// Antialiased resize that equals Pillow 12's bit for bit, for 8-bit RGB.
#pragma once

#include <cstddef>
#include <cstdint>

#include "config/config.hpp"

namespace orchard::data {

// Part of an image, in pixels: columns x .. x+width, rows y .. y+height.
struct Box {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
};

// A view of RGB pixels, rows of width * 3 bytes without padding.
struct Pixels {
  const std::uint8_t* rgb = nullptr;
  int width = 0;
  int height = 0;
};

// What Pillow's `image.crop(box).resize((out_width, out_height)).crop(window)` gives; only the
// pixels of the window are computed. `out` takes window.height rows of window.width * 3 bytes.
//
// The method (Pillow's Resample.c): weights in double, made into fixed point of 22 bits; columns
// first, then rows, each pass rounded to 8 bits; a pass that keeps its size is left out.
void resize(const Pixels& in, const Box& box, int out_width, int out_height, const Box& window,
            config::Interpolation interpolation, std::uint8_t* out);

}  // namespace orchard::data
