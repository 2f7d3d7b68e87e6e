#include "data/sample_set.hpp"

#include <unistd.h>

#include <array>
#include <cmath>
#include <numbers>
#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/philox.hpp"
#include "base/stop.hpp"
#include "base/text.hpp"

namespace orchard::data {
namespace {

namespace fs = std::filesystem;

enum class Shape { Circle, Cross, Triangle };
enum class Texture { Dots, Stripes };

struct Class {
  const char* name;
  Shape shape;
  Texture texture;
};

// In byte order of the names, as a scan finds them.
constexpr std::array<Class, 6> kClasses = {
    {{"circle_dots", Shape::Circle, Texture::Dots},
     {"circle_stripes", Shape::Circle, Texture::Stripes},
     {"cross_dots", Shape::Cross, Texture::Dots},
     {"cross_stripes", Shape::Cross, Texture::Stripes},
     {"triangle_dots", Shape::Triangle, Texture::Dots},
     {"triangle_stripes", Shape::Triangle, Texture::Stripes}}};

constexpr int kOversampling = 2;  // drawn large and shrunk, for smooth edges
constexpr std::uint32_t kTrainDraws = 16;
constexpr std::uint32_t kValDraws = 17;

// A colour whose channels lie in low..high.
cv::Scalar random_color(Philox& draws, double low, double high) {
  return {draws.uniform(low, high), draws.uniform(low, high), draws.uniform(low, high)};
}

// Hues are free; the brightness ranks are fixed (a dark shape with a lighter texture on a light
// ground), so that a small network finds the shape in about a minute of training.
cv::Scalar ground_color(Philox& draws) {
  return random_color(draws, 160, 245);
}
cv::Scalar shape_color(Philox& draws) {
  return random_color(draws, 5, 85);
}
cv::Scalar texture_color(Philox& draws) {
  return random_color(draws, 110, 200);
}

cv::Point2d at_angle(const cv::Point2d& center, double radius, double angle) {
  return {center.x + radius * std::cos(angle), center.y + radius * std::sin(angle)};
}

// White where the shape is. All three shapes have about the same area for one `radius`.
cv::Mat shape_mask(Shape shape, cv::Size size, const cv::Point2d& center, double radius,
                   double angle) {
  cv::Mat mask(size, CV_8UC1, cv::Scalar(0));
  if (shape == Shape::Circle) {
    cv::circle(mask, center, static_cast<int>(radius), cv::Scalar(255), cv::FILLED);
    return mask;
  }
  std::vector<cv::Point> points;
  if (shape == Shape::Cross) {
    constexpr std::array<std::array<double, 2>, 12> kCorners = {{{1, 3},
                                                                 {1, 1},
                                                                 {3, 1},
                                                                 {3, -1},
                                                                 {1, -1},
                                                                 {1, -3},
                                                                 {-1, -3},
                                                                 {-1, -1},
                                                                 {-3, -1},
                                                                 {-3, 1},
                                                                 {-1, 1},
                                                                 {-1, 3}}};
    for (const auto& [x, y] : kCorners) {
      points.emplace_back(
          at_angle(center, 0.4 * radius * std::hypot(x, y), angle + std::atan2(y, x)));
    }
  } else {
    for (int i = 0; i < 3; ++i) {
      points.emplace_back(at_angle(center, 1.45 * radius, angle + 2 * std::numbers::pi * i / 3));
    }
  }
  cv::fillPoly(mask, std::vector<std::vector<cv::Point>>{points}, cv::Scalar(255));
  return mask;
}

// Dots and stripes cover about half of the area each, so that brightness tells nothing.
cv::Mat texture_mask(Texture texture, cv::Size size, double pitch, double angle, double phase) {
  cv::Mat mask(size, CV_8UC1, cv::Scalar(0));
  const double cosine = std::cos(angle);
  const double sine = std::sin(angle);
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      const double along = (x * cosine + y * sine) / pitch + phase;
      const double across = (y * cosine - x * sine) / pitch + phase;
      const double a = along - std::floor(along) - 0.5;
      const double b = across - std::floor(across) - 0.5;
      const bool on = texture == Texture::Stripes ? a < 0.0 : a * a + b * b < 0.159;
      mask.at<std::uint8_t>(y, x) = on ? 255 : 0;
    }
  }
  return mask;
}

void paint_background(cv::Mat& canvas, Philox& draws, const cv::Scalar& color) {
  const cv::Scalar other = ground_color(draws);
  const double angle = draws.uniform(0, 2 * std::numbers::pi);
  for (int y = 0; y < canvas.rows; ++y) {
    for (int x = 0; x < canvas.cols; ++x) {
      const double t =
          0.15 * (1 + (std::cos(angle) * x / canvas.cols + std::sin(angle) * y / canvas.rows));
      for (int c = 0; c < 3; ++c) {
        canvas.at<cv::Vec3b>(y, x)[c] =
            cv::saturate_cast<std::uint8_t>((1 - t) * color[c] + t * other[c]);
      }
    }
  }
  for (int i = 0; i < 2; ++i) {  // lines that mean nothing
    const cv::Point from(static_cast<int>(draws.uniform(0, canvas.cols)),
                         static_cast<int>(draws.uniform(0, canvas.rows)));
    const cv::Point to(static_cast<int>(draws.uniform(0, canvas.cols)),
                       static_cast<int>(draws.uniform(0, canvas.rows)));
    cv::line(canvas, from, to, random_color(draws, 5, 200),
             static_cast<int>(draws.uniform(1, 4)) * kOversampling);
  }
}

void add_noise(cv::Mat& image, Philox& draws) {
  const double deviation = draws.uniform(1, 6);
  for (int y = 0; y < image.rows; ++y) {
    auto* row = image.ptr<std::uint8_t>(y);
    for (int x = 0; x < image.cols * 3; ++x) {
      // The sum of four uniform draws is close enough to a normal one.
      const double normal = (draws.next_u32() * 0x1.0p-32 + draws.next_u32() * 0x1.0p-32 +
                             draws.next_u32() * 0x1.0p-32 + draws.next_u32() * 0x1.0p-32 - 2.0) *
                            1.7320508;
      row[x] = cv::saturate_cast<std::uint8_t>(row[x] + deviation * normal);
    }
  }
}

std::vector<std::uint8_t> draw(const Class& drawn, Philox draws) {
  const cv::Size size(static_cast<int>(draws.uniform(96, 160)),
                      static_cast<int>(draws.uniform(96, 160)));
  cv::Mat canvas(size * kOversampling, CV_8UC3);
  const cv::Scalar background = ground_color(draws);
  paint_background(canvas, draws, background);

  const double radius = draws.uniform(0.32, 0.42) * std::min(canvas.cols, canvas.rows);
  const double margin = radius;
  const cv::Point2d center(draws.uniform(margin, canvas.cols - margin),
                           draws.uniform(margin, canvas.rows - margin));
  const cv::Mat shape = shape_mask(drawn.shape, canvas.size(), center, radius,
                                   draws.uniform(0, 2 * std::numbers::pi));
  const cv::Mat texture =
      texture_mask(drawn.texture, canvas.size(), radius * draws.uniform(0.6, 0.8),
                   draws.uniform(0, std::numbers::pi), draws.uniform(0, 1));
  canvas.setTo(shape_color(draws), shape);
  canvas.setTo(texture_color(draws), shape & texture);

  cv::Mat image;
  cv::resize(canvas, image, size, 0, 0, cv::INTER_AREA);
  add_noise(image, draws);
  std::vector<std::uint8_t> bytes;
  cv::imencode(".jpg", image, bytes,
               {cv::IMWRITE_JPEG_QUALITY, static_cast<int>(draws.uniform(80, 96))});
  return bytes;
}

void write_split(const fs::path& folder, std::int64_t per_class, std::uint64_t seed,
                 std::uint32_t op) {
  for (std::size_t c = 0; c < kClasses.size(); ++c) {
    fs::create_directories(folder / kClasses.at(c).name);
    for (std::int64_t i = 0; i < per_class; ++i) {
      throw_if_stopped();
      const Philox draws(seed, static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(c), op);
      const auto bytes = draw(kClasses.at(c), draws);
      std::string name = std::to_string(i);
      name.insert(0, name.size() < 4 ? 4 - name.size() : 0, '0');
      const auto path = folder / kClasses.at(c).name / (name + ".jpg");
      write_atomically(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
}

}  // namespace

std::vector<std::string> sample_set_classes() {
  std::vector<std::string> names;
  for (const auto& each : kClasses) {
    names.emplace_back(each.name);
  }
  return names;
}

void make_sample_set(const SampleSetOptions& options) {
  std::error_code code;
  if (fs::exists(options.root, code)) {
    throw Error(ErrorKind::Data, "'" + options.root.string() + "' exists already",
                "name a new folder, or remove that one first");
  }
  const fs::path part = options.root.string() + str(".part-", ::getpid());
  try {
    write_split(part / "train", options.train_per_class, options.seed, kTrainDraws);
    write_split(part / "val", options.val_per_class, options.seed, kValDraws);
    fs::rename(part, options.root);
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(part, code);
    throw Error(
        ErrorKind::Data,
        "cannot write the sample set to '" + options.root.string() + "': " + e.code().message(),
        "name a folder that can be written, on a disk with a few MiB free");
  } catch (...) {
    fs::remove_all(part, code);
    throw;
  }
}

}  // namespace orchard::data
