// Antialiased resize that equals Pillow 12's bit for bit (Image.resize with a box), for 8-bit RGB.
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

// A view of RGB pixels, rows `stride_bytes` apart.
struct PixelsIn {
  const std::uint8_t* data = nullptr;
  int width = 0;
  int height = 0;
  std::size_t stride_bytes = 0;
};

// Resizes the box of `in` to out_width x out_height and writes it to `out` (rows of out_width * 3
// bytes without padding). Only pixels inside the box count, as after Pillow's crop().
void resize(const PixelsIn& in, const Box& box, int out_width, int out_height,
            config::Interpolation interpolation, std::uint8_t* out);

}  // namespace orchard::data
