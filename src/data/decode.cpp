#include "data/decode.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <new>
#include <opencv2/core.hpp>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace orchard::data {
namespace {

// OpenCV 4.10 learned to decode to RGB; before, the channels have to be swapped afterwards.
constexpr bool kDecodesToRgb =
    CV_VERSION_MAJOR > 4 || (CV_VERSION_MAJOR == 4 && CV_VERSION_MINOR >= 10);
constexpr int kImreadColorRgb = 256;  // cv::IMREAD_COLOR_RGB, which older headers do not have

using Bytes = std::vector<std::uint8_t>;

// Once per process: faults reach the caller as exceptions, so OpenCV need not print them too, and
// its own threads would only compete with the loader's.
void set_up_opencv() {
  static const bool done = [] {
    cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_SILENT);
    cv::setNumThreads(1);
    return true;
  }();
  (void)done;
}

std::uint32_t big_endian_16(const std::uint8_t* at) {
  return static_cast<std::uint32_t>(at[0]) << 8U | at[1];
}
std::uint32_t big_endian_32(const std::uint8_t* at) {
  return big_endian_16(at) << 16U | big_endian_16(at + 2);
}

void check_pixels(std::uint64_t width, std::uint64_t height) {
  if (width * height > static_cast<std::uint64_t>(kMaxPixels)) {
    throw BadImageError(str("too large: ", width, "x", height, " pixels"));
  }
}

// Walks the segments, so that the end-of-image marker of a thumbnail inside EXIF data is not taken
// for that of the image. libjpeg fills what is missing with gray and only prints a warning, hence
// the walk.
void check_jpeg(const Bytes& bytes) {
  const std::size_t size = bytes.size();
  bool in_scan =
      false;  // inside entropy-coded data, where FF 00 and the restart markers are no end
  bool any_scan = false;
  std::size_t at = 2;
  while (at < size) {
    const auto* found = static_cast<const std::uint8_t*>(std::memchr(&bytes[at], 0xFF, size - at));
    if (found == nullptr) {
      break;
    }
    at = static_cast<std::size_t>(found - bytes.data()) + 1;
    while (at < size && bytes[at] == 0xFF) {
      ++at;  // fill bytes
    }
    if (at >= size) {
      break;
    }
    const std::uint8_t marker = bytes[at++];
    const bool is_restart = marker >= 0xD0 && marker <= 0xD7;
    if (marker == 0x00 || marker == 0x01 || is_restart) {
      continue;
    }
    if (marker == 0xD9) {
      if (!any_scan) {
        throw BadImageError("a damaged JPEG (it ends before any image data)");
      }
      return;
    }
    if (marker == 0xD8) {
      if (in_scan) {
        break;  // another image begins where this one should have ended
      }
      continue;
    }
    if (at + 2 > size) {
      break;
    }
    const std::size_t length = big_endian_16(&bytes[at]);
    if (length < 2) {
      throw BadImageError("a damaged JPEG");
    }
    if (at + length > size) {
      break;
    }
    const bool is_frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 &&
                          marker != 0xCC;  // the others are tables
    if (is_frame && length >= 7) {
      check_pixels(big_endian_16(&bytes[at + 5]), big_endian_16(&bytes[at + 3]));
    }
    in_scan = marker == 0xDA;
    any_scan |= in_scan;
    at += length;
  }
  throw BadImageError("truncated JPEG");
}

// Checks the chunks that are needed for the picture; libpng would print its complaints to stderr.
void check_png(const Bytes& bytes) {
  const std::size_t size = bytes.size();
  std::size_t at = 8;
  while (at + 12 <= size) {
    const std::size_t length = big_endian_32(&bytes[at]);
    const std::string_view type(reinterpret_cast<const char*>(&bytes[at + 4]), 4);
    if (length > size - at - 12) {
      break;
    }
    if (type == "IHDR" && length >= 8) {
      check_pixels(big_endian_32(&bytes[at + 8]), big_endian_32(&bytes[at + 12]));
    }
    const bool is_critical = type[0] >= 'A' && type[0] <= 'Z';
    if (is_critical && ::crc32(0, &bytes[at + 4], static_cast<uInt>(length + 4)) !=
                           big_endian_32(&bytes[at + 8 + length])) {
      throw BadImageError("a damaged PNG (wrong checksum)");
    }
    if (type == "IEND") {
      return;
    }
    at += 12 + length;
  }
  throw BadImageError("truncated PNG");
}

// The reason why content of this kind is refused, or "" when OpenCV shall try.
std::string refusal(std::string_view head) {
  const auto starts = [&](std::string_view magic) { return head.starts_with(magic); };
  const auto is_one_of = [](std::string_view text, std::initializer_list<std::string_view> list) {
    return std::find(list.begin(), list.end(), text) != list.end();
  };
  if (starts("\xFF\xD8\xFF") || starts("\x89PNG\r\n\x1A\n") || starts("BM") ||
      starts({"II*\0", 4}) || starts({"MM\0*", 4}) || starts({"II+\0", 4}) ||
      starts({"MM\0+", 4})) {
    return "";
  }
  if (head.size() > 2 && head[0] == 'P' && head[1] >= '1' && head[1] <= '6' &&
      (std::isspace(static_cast<unsigned char>(head[2])) != 0 || head[2] == '#')) {
    return "";  // PBM, PGM, PPM
  }
  if (starts("RIFF") && head.size() >= 12 && head.substr(8, 4) == "WEBP") {
    const bool extended = head.size() > 20 && head.substr(12, 4) == "VP8X";
    return extended && (static_cast<unsigned char>(head[20]) & 0x02U) != 0
               ? "an animated WebP, which cannot be read"
               : "";
  }
  if (starts("GIF87a") || starts("GIF89a")) {
    return "a GIF, which cannot be read";
  }
  if (head.size() >= 12 && head.substr(4, 4) == "ftyp") {
    const std::string_view brand = head.substr(8, 4);
    if (is_one_of(brand, {"avif", "avis"})) {
      return "an AVIF, which cannot be read";
    }
    if (is_one_of(brand, {"heic", "heix", "hevc", "hevx", "heim", "heis", "mif1", "msf1"})) {
      return "a HEIC, which cannot be read; convert it to JPEG";
    }
    return "a video or another MP4-like file, not an image";
  }
  if (starts({"\x00\x00\x00\x0CJXL ", 8}) || starts("\xFF\x0A")) {
    return "a JPEG XL, which cannot be read";
  }
  if (starts({"\x00\x00\x00\x0CjP  ", 8})) {
    return "a JPEG 2000, which cannot be read";
  }
  if (starts({"PK\x03\x04", 4})) {
    return "a zip file, not an image";
  }
  if (starts("\x1F\x8B")) {
    return "a gzip file, not an image";
  }
  if (starts("%PDF")) {
    return "a PDF, not an image";
  }
  if (starts({"\x00\x05\x16\x07", 4})) {
    return "macOS metadata (AppleDouble), not an image";
  }
  if (std::all_of(head.begin(), head.end(), [](char c) { return c == '\0'; })) {
    return "nothing but zero bytes";
  }
  const std::size_t first = head.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (first != std::string_view::npos) {
    const std::string text = lower(head.substr(first, 14));
    if (text.starts_with("<!doctype html") || text.starts_with("<html")) {
      return "an HTML page (a failed download?), not an image";
    }
    if (text.starts_with("<svg") || text.starts_with("<?xml")) {
      return "SVG or XML text, which cannot be read";
    }
    if (text.starts_with("version https:")) {
      return "a Git LFS pointer (the file itself was not fetched), not an image";
    }
  }
  const bool is_text = std::all_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 ? byte != 0x7F : byte == '\t' || byte == '\n' || byte == '\r';
  });
  return is_text ? "text, not an image" : "not an image of a known kind";
}

// What to call content that OpenCV should read and does not.
std::string damaged_name(std::string_view head) {
  switch (head[0]) {
    case '\xFF':
      return "a damaged JPEG";
    case '\x89':
      return "a damaged PNG";
    case 'R':
      return "a damaged WebP";
    case 'B':
      return "a damaged BMP";
    case 'P':
      return "a damaged PBM, PGM or PPM";
    default:
      return "a damaged or unusual TIFF";
  }
}

// One line, without OpenCV's file and line numbers.
std::string first_line(const cv::Exception& error) {
  const std::string text = error.err.empty() ? error.what() : error.err;
  return text.substr(0, text.find('\n'));
}

Bytes read_bytes(const std::string& path) {
  // Not blocking: opening a FIFO without a writer would wait for ever.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE)) {
    throw Error(
        ErrorKind::Data, str("cannot open '", path, "': ", std::strerror(errno)),
        "raise the limit of open files (ulimit -n), or set data.workers to a smaller number");
  }
  if (descriptor < 0) {
    throw BadImageError(str("cannot be opened: ", std::strerror(errno)));
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } const closer{descriptor};
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    throw BadImageError(std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw BadImageError(S_ISDIR(status.st_mode) ? "a folder, not a file" : "not a regular file");
  }
  Bytes bytes(static_cast<std::size_t>(status.st_size));
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = ::read(descriptor, bytes.data() + have, bytes.size() - have);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw BadImageError(str("cannot be read: ", std::strerror(errno)));
    }
    if (got == 0) {
      break;  // it shrank while being read
    }
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

}  // namespace

Image decode_bytes(const std::vector<std::uint8_t>& bytes, config::ExifOrientation exif) {
  if (bytes.empty()) {
    throw BadImageError("an empty file");
  }
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()),
                              std::min<std::size_t>(bytes.size(), 64));
  if (const std::string reason = refusal(head); !reason.empty()) {
    throw BadImageError(reason);
  }
  if (bytes[0] == 0xFF) {
    check_jpeg(bytes);
  } else if (bytes[0] == 0x89) {
    check_png(bytes);
  }
  set_up_opencv();
  try {
    int flags = kDecodesToRgb ? kImreadColorRgb : static_cast<int>(cv::IMREAD_COLOR);
    if (exif == config::ExifOrientation::Ignore) {
      flags |= cv::IMREAD_IGNORE_ORIENTATION;
    }
    cv::Mat pixels = cv::imdecode(bytes, flags);
    if (pixels.empty()) {
      throw BadImageError(damaged_name(head));
    }
    check_pixels(static_cast<std::uint64_t>(pixels.cols), static_cast<std::uint64_t>(pixels.rows));
    if (pixels.type() != CV_8UC3) {
      throw BadImageError("an unsupported pixel type");
    }
    Image image{.width = pixels.cols, .height = pixels.rows, .rgb = {}};
    image.rgb.resize(pixels.total() * 3);
    cv::Mat rgb(pixels.rows, pixels.cols, CV_8UC3, image.rgb.data());
    if (kDecodesToRgb) {
      pixels.copyTo(rgb);
    } else {
      cv::cvtColor(pixels, rgb, cv::COLOR_BGR2RGB);
    }
    return image;
  } catch (const cv::Exception& error) {
    if (error.code == cv::Error::StsNoMem) {
      throw std::bad_alloc();  // the fault of this machine, not of the file
    }
    throw BadImageError(str(damaged_name(head), " (", first_line(error), ")"));
  }
}

Image decode_file(const std::string& path, config::ExifOrientation exif) {
  return decode_bytes(read_bytes(path), exif);
}

}  // namespace orchard::data
