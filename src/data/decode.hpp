// Image files to 8-bit RGB, through OpenCV.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace orchard::data {

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  // height * width * 3, rows from the top, no padding
};

// Why one file is no good. Not an Error: the loader's policy decides what becomes of it.
class BadImageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;  // the reason alone: "truncated JPEG", "empty file"
};

// Reads and decodes one file; the kind is told from its content, never from its name. Gray,
// palette, 16-bit and alpha images become plain 8-bit RGB (alpha is dropped). Throws BadImageError
// for files that are missing, empty, truncated, unknown or larger than kMaxPixels; std::bad_alloc
// when the memory does not suffice. Any number of threads may call them.
Image decode_file(const std::string& path, config::ExifOrientation exif);
Image decode_bytes(const std::vector<std::uint8_t>& bytes, config::ExifOrientation exif);

constexpr std::int64_t kMaxPixels = 178'956'970;  // Pillow's limit for decompression bombs

}  // namespace orchard::data
