#include <doctest/doctest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.hpp"
#include "data/decode.hpp"
#include "data/image_folder.hpp"
#include "data/sample_set.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::data;

namespace {

std::vector<std::uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

Image decoded(const std::string& bytes) {
  return decode_bytes(bytes_of(bytes), config::ExifOrientation::Ignore);
}

std::string reason(const std::string& bytes) {
  try {
    decoded(bytes);
  } catch (const BadImageError& e) {
    return e.what();
  }
  return "";
}

std::string big_endian(std::uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) {
    text += static_cast<char>(value >> static_cast<unsigned>(shift));
  }
  return text;
}

std::string png_chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto sum =
      ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + body +
         big_endian(static_cast<std::uint32_t>(sum));
}

// A PNG written from the specification alone; rows already hold their filter bytes.
std::string png(std::uint32_t width, std::uint32_t height, char bits, char color_type,
                const std::string& rows, const std::string& before_data = "") {
  uLongf size = ::compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &size,
             reinterpret_cast<const Bytef*>(rows.data()), static_cast<uLong>(rows.size()));
  packed.resize(size);
  const std::string header =
      big_endian(width) + big_endian(height) + bits + color_type + std::string(3, '\0');
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + before_data + png_chunk("IDAT", packed) +
         png_chunk("IEND", "");
}

// A small JPEG of the drawn set.
const std::string& jpeg() {
  static const std::string bytes = [] {
    const TempFolder folder;
    make_sample_set({.root = folder / "set", .train_per_class = 1, .val_per_class = 1, .seed = 5});
    return read_file(scan(folder / "set" / "train").samples.front().path);
  }();
  return bytes;
}

std::string jpeg_segment(char marker, const std::string& data) {
  return std::string("\xff") + marker +
         big_endian(static_cast<std::uint32_t>(data.size() + 2)).substr(2) + data;
}

std::string with_segment(const std::string& whole, const std::string& segment) {
  return whole.substr(0, 2) + segment + whole.substr(2);
}

using Rgb = std::vector<std::uint8_t>;

}  // namespace

TEST_CASE(
    "decode: gray, palette, alpha and 16 bits become 8-bit RGB, in the order red, green, blue") {
  const std::string rgb("\0\x01\x02\x03\xf0\xe0\xd0", 7);  // filter byte, two pixels
  CHECK(decoded(png(2, 1, 8, 2, rgb)).rgb == Rgb{1, 2, 3, 0xf0, 0xe0, 0xd0});
  CHECK(decoded(png(2, 1, 8, 0, {"\0\x07\xc8", 3})).rgb == Rgb{7, 7, 7, 200, 200, 200});
  // Alpha is dropped, and the colour under it stays.
  CHECK(decoded(png(1, 1, 8, 6, {"\0\x0a\x14\x1e\0", 5})).rgb == Rgb{10, 20, 30});
  CHECK(decoded(png(1, 1, 8, 4, {"\0\x63\x10", 3})).rgb == Rgb{99, 99, 99});
  CHECK(decoded(png(2, 1, 8, 3, {"\0\1\0", 3},
                    png_chunk("PLTE", "\x09\x08\x07\xff\xfe\xfd") + png_chunk("tRNS", "\x01")))
            .rgb == Rgb{0xff, 0xfe, 0xfd, 9, 8, 7});
  // 16 bits are scaled down, where Pillow would clip them to white.
  CHECK(decoded(png(2, 1, 16, 0, {"\0\x12\x34\xab\xcd", 5})).rgb ==
        Rgb{0x12, 0x12, 0x12, 0xab, 0xab, 0xab});
  CHECK(decoded(png(1, 1, 16, 2, {"\0\x10\0\x20\0\x30\0", 7})).rgb == Rgb{0x10, 0x20, 0x30});
  CHECK(decoded("P6 2 1 255\n\x01\x02\x03\x04\x05\x06").rgb == Rgb{1, 2, 3, 4, 5, 6});
}

TEST_CASE("decode: a damaged PNG is told by its checksum") {
  const std::string whole = png(2, 1, 8, 2, {"\0\x01\x02\x03\xf0\xe0\xd0", 7});
  REQUIRE(reason(whole).empty());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK_FALSE(reason(whole.substr(0, length)).empty());
  }
  std::string damaged = whole;
  damaged[whole.find("IDAT") + 8] ^= 0x10;
  CHECK(reason(damaged) == "a damaged PNG (wrong checksum)");
  // Of a chunk that no picture needs, the checksum does not matter.
  std::string comment = png_chunk("tEXt", "Comment");
  comment.back() ^= 1;
  CHECK(reason(png(1, 1, 8, 0, {"\0\x07", 2}, comment)).empty());
}

TEST_CASE("decode: the end of a JPEG is not looked for inside its segments") {
  const std::string& whole = jpeg();
  const std::string cut = whole.substr(0, whole.size() / 2);
  // A thumbnail in EXIF data or a table may hold the end marker.
  const std::string thumbnail = jpeg_segment('\xe1', std::string("Exif\0\0\xff\xd8\xff\xd9", 10));
  CHECK(reason(with_segment(whole, thumbnail)).empty());
  CHECK(reason(with_segment(cut, thumbnail)) == "truncated JPEG");
  CHECK(reason(cut + jpeg_segment('\xfe', "\xff\xd9")) == "truncated JPEG");
  // So may what comes after a cut file that another one was written behind.
  CHECK(reason(cut + whole) == "truncated JPEG");
  CHECK(reason(whole + whole).empty());
  // libjpeg skips stray and fill bytes between segments.
  CHECK(
      reason(with_segment(whole, std::string("\xff\xff", 2) + jpeg_segment('\xfe', "x"))).empty());
  const std::size_t second = 4 + static_cast<std::size_t>(whole[4]) * 256 +
                             static_cast<std::uint8_t>(whole[5]);  // where it begins
  CHECK(reason(whole.substr(0, second) + std::string(2, '\0') + whole.substr(second)).empty());
  CHECK_FALSE(reason("\xff\xd8\xff\xd9").empty());
}

TEST_CASE("decode: the same kinds are refused whatever this OpenCV could read") {
  const std::string gif("GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\1\0\1\0\0\2\2D\1\0;",
                        35);
  CHECK(reason(gif) == "a GIF, which cannot be read");
  const std::string animated("RIFF\x1a\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\0\0\0\0\0\0", 30);
  CHECK(reason(animated) == "an animated WebP, which cannot be read");
  CHECK(reason("<!DOCTYPE html><html></html>").find("HTML") != std::string::npos);
  CHECK(reason("version https://git-lfs.github.com/spec/v1\noid sha256:0\n").find("Git LFS") !=
        std::string::npos);
  CHECK(reason(std::string(100, '\0')) == "nothing but zero bytes");
}

TEST_CASE("decode_file: what is no regular file neither waits nor asks for memory") {
  const TempFolder folder;
  REQUIRE(::mkfifo((folder / "pipe.jpg").c_str(), 0600) == 0);
  for (const auto& path : {folder / "pipe.jpg", folder.path()}) {
    std::string text;
    try {
      decode_file(path.string(), config::ExifOrientation::Ignore);
    } catch (const BadImageError& e) {
      text = e.what();
    }
    CHECK(text.find("not a") != std::string::npos);
  }
}
