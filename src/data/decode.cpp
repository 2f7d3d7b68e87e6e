#include "data/decode.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <opencv2/core.hpp>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <string_view>
#include <system_error>

namespace orchard::data {
namespace {

using Bytes = std::vector<std::uint8_t>;

bool starts_with(const Bytes& bytes, std::string_view magic, std::size_t offset = 0) {
  return bytes.size() >= offset + magic.size() &&
         std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
}

// A name for content that OpenCV cannot read.
std::string describe(const Bytes& bytes) {
  if (starts_with(bytes, "GIF8")) {
    return "a GIF, which cannot be read";
  }
  if (starts_with(bytes, "RIFF") && starts_with(bytes, "WEBP", 8)) {
    return "a WebP file that cannot be read (animated or damaged)";
  }
  if (starts_with(bytes, "ftypavif", 4) || starts_with(bytes, "ftypavis", 4)) {
    return "an AVIF, which cannot be read";
  }
  if (starts_with(bytes, "ftyphei", 4) || starts_with(bytes, "ftypmif1", 4)) {
    return "a HEIC, which cannot be read; convert it to JPEG";
  }
  if (starts_with(bytes, "PK\x03\x04")) {
    return "a zip file, not an image";
  }
  if (starts_with(bytes, "\xff\xd8")) {
    return "a damaged JPEG";
  }
  if (starts_with(bytes, "\x89PNG")) {
    return "a damaged PNG";
  }
  const auto head = std::min<std::size_t>(bytes.size(), 256);
  const bool text =
      std::all_of(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(head),
                  [](std::uint8_t c) { return c >= 32 || c == '\n' || c == '\r' || c == '\t'; });
  return text ? "text, not an image" : "not an image of a known kind";
}

std::int64_t big_endian(const Bytes& bytes, std::size_t offset, std::size_t count) {
  std::int64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value = value << 8U | bytes.at(offset + i);
  }
  return value;
}

void check_pixels(std::int64_t width, std::int64_t height) {
  if (width > 0 && height > kMaxPixels / width) {
    throw BadImageError("too large: " + std::to_string(width) + "x" + std::to_string(height) +
                        " pixels");
  }
}

// Walks the segments of a JPEG: checks the size before anything is allocated, and that the coded
// data ends with its end marker. The decoder would fill a cut file with gray and call it an image.
void check_jpeg(const Bytes& bytes) {
  std::size_t at = 2;
  while (at + 4 <= bytes.size()) {
    if (bytes[at] != 0xff) {
      throw BadImageError("a damaged JPEG");
    }
    const std::uint8_t marker = bytes[at + 1];
    if (marker == 0xff) {  // a fill byte
      ++at;
      continue;
    }
    const bool is_frame =
        marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (is_frame && at + 9 <= bytes.size()) {
      check_pixels(big_endian(bytes, at + 7, 2), big_endian(bytes, at + 5, 2));
    }
    at += 2 + static_cast<std::size_t>(big_endian(bytes, at + 2, 2));
    if (marker == 0xda) {  // the coded data follows; an 0xff in it is never followed by 0xd9
      constexpr std::array<std::uint8_t, 2> kEnd = {0xff, 0xd9};
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(std::min(at, bytes.size()));
      if (std::search(begin, bytes.end(), kEnd.begin(), kEnd.end()) == bytes.end()) {
        throw BadImageError("truncated JPEG");
      }
      return;
    }
  }
  throw BadImageError("truncated JPEG");
}

void check_png(const Bytes& bytes) {
  if (bytes.size() >= 24) {
    check_pixels(big_endian(bytes, 16, 4), big_endian(bytes, 20, 4));
  }
  for (std::size_t at = 8; at + 12 <= bytes.size();) {
    if (starts_with(bytes, "IEND", at + 4)) {
      return;
    }
    at += 12 + static_cast<std::size_t>(big_endian(bytes, at, 4));
  }
  throw BadImageError("truncated PNG");
}

}  // namespace

Image decode_bytes(const Bytes& bytes, config::ExifOrientation exif) {
  // What OpenCV would print about a bad file is told by us, with the file's name.
  [[maybe_unused]] static const auto kQuiet =
      cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT);
  if (bytes.empty()) {
    throw BadImageError("an empty file");
  }
  if (starts_with(bytes, "\xff\xd8\xff")) {
    check_jpeg(bytes);
  } else if (starts_with(bytes, "\x89PNG\r\n\x1a\n")) {
    check_png(bytes);
  }
  const int flags = exif == config::ExifOrientation::Ignore
                        ? cv::IMREAD_COLOR | cv::IMREAD_IGNORE_ORIENTATION
                        : cv::IMREAD_COLOR;
  Image image;
  try {
    cv::Mat bgr = cv::imdecode(bytes, flags);
    if (bgr.empty()) {
      throw BadImageError(describe(bytes));
    }
    check_pixels(bgr.cols, bgr.rows);
    image.width = bgr.cols;
    image.height = bgr.rows;
    image.rgb.resize(static_cast<std::size_t>(bgr.cols) * static_cast<std::size_t>(bgr.rows) * 3);
    cv::Mat rgb(bgr.rows, bgr.cols, CV_8UC3, image.rgb.data());
    cv::cvtColor(bgr, rgb, cv::COLOR_BGR2RGB);
  } catch (const cv::Exception& e) {
    throw BadImageError(describe(bytes) + " (" + e.err + ")");
  }
  return image;
}

Image decode_file(const std::string& path, config::ExifOrientation exif) {
  // Not by seeking: the end of an opened folder is anywhere up to 2^63 - 1, as its file system
  // likes.
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  if (code) {
    throw BadImageError("cannot be opened: " + code.message());
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw BadImageError(std::string("cannot be opened: ") + std::strerror(errno));
  }
  Bytes bytes(size);
  if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) {
    throw BadImageError(std::string("cannot be read: ") + std::strerror(errno));
  }
  return decode_bytes(bytes, exif);
}

}  // namespace orchard::data
