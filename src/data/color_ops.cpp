#include "data/color_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <numbers>
#include <vector>

namespace orchard::data {
namespace {

using Table = std::array<std::uint8_t, 256>;
using Histogram = std::array<std::int64_t, 256>;

std::size_t num_pixels(Canvas canvas) {
  return static_cast<std::size_t>(canvas.width) * static_cast<std::size_t>(canvas.height);
}

std::size_t num_bytes(Canvas canvas) {
  return num_pixels(canvas) * 3;
}

std::vector<std::uint8_t> copy_of(Canvas canvas) {
  return {canvas.rgb, canvas.rgb + num_bytes(canvas)};
}

std::uint8_t clip8(int value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0, 255));
}

// Pillow's weights of 16 bits for ITU-R 601-2.
std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >>
                                   16);
}

// Image.blend: in float32, cut down to a whole number.
std::uint8_t blend(int other, int value, float factor) {
  const float mixed = static_cast<float>(other) + factor * static_cast<float>(value - other);
  return static_cast<std::uint8_t>(std::clamp(mixed, 0.0F, 255.0F));
}

void apply(Canvas canvas, const Table& table) {
  for (std::size_t i = 0; i < num_bytes(canvas); ++i) {
    canvas.rgb[i] = table[canvas.rgb[i]];
  }
}

void apply(Canvas canvas, const std::array<Table, 3>& tables) {
  for (std::size_t i = 0; i < num_bytes(canvas); i += 3) {
    for (std::size_t c = 0; c < 3; ++c) {
      canvas.rgb[i + c] = tables.at(c)[canvas.rgb[i + c]];
    }
  }
}

template <class Function>
Table make_table(Function function) {
  Table table{};
  for (int value = 0; value < 256; ++value) {
    table.at(static_cast<std::size_t>(value)) = function(value);
  }
  return table;
}

Table same_values() {
  return make_table([](int value) { return static_cast<std::uint8_t>(value); });
}

std::array<Histogram, 3> histograms(Canvas canvas) {
  std::array<Histogram, 3> counts{};
  for (std::size_t i = 0; i < num_bytes(canvas); i += 3) {
    for (std::size_t c = 0; c < 3; ++c) {
      ++counts.at(c)[canvas.rgb[i + c]];
    }
  }
  return counts;
}

Table stretched(const Histogram& counts) {
  const auto is_used = [](std::int64_t count) { return count != 0; };
  const auto low =
      static_cast<int>(std::find_if(counts.begin(), counts.end(), is_used) - counts.begin());
  const auto high = 255 - static_cast<int>(std::find_if(counts.rbegin(), counts.rend(), is_used) -
                                           counts.rbegin());
  if (high <= low) {
    return same_values();
  }
  const double scale = 255.0 / (high - low);
  const double offset = -low * scale;
  return make_table([&](int value) { return clip8(static_cast<int>(value * scale + offset)); });
}

Table flattened(const Histogram& counts) {
  std::int64_t total = 0;
  std::int64_t brightest = 0;  // pixels of the highest value that occurs
  for (const std::int64_t count : counts) {
    total += count;
    brightest = count != 0 ? count : brightest;
  }
  const std::int64_t step = (total - brightest) / 255;
  if (step == 0) {
    return same_values();
  }
  std::int64_t below = step / 2;
  Table table{};
  for (std::size_t value = 0; value < 256; ++value) {
    table.at(value) = static_cast<std::uint8_t>(std::min<std::int64_t>(below / step, 255));
    below += counts.at(value);
  }
  return table;
}

// --- hue ---

struct Hsv {
  std::uint8_t hue = 0;
  std::uint8_t saturation = 0;
  std::uint8_t value = 0;
};

// Each step is rounded to float32 where Pillow stores one, and done in double where it does not.
Hsv to_hsv(const std::uint8_t* rgb) {
  const auto [least, most] = std::minmax({rgb[0], rgb[1], rgb[2]});
  if (least == most) {
    return {.hue = 0, .saturation = 0, .value = most};
  }
  const auto range = static_cast<float>(most - least);
  const float saturation = range / static_cast<float>(most);
  const auto from_most = [&](int channel) {
    return static_cast<float>(most - rgb[channel]) / range;
  };
  float hue = 0;
  if (rgb[0] == most) {
    hue = from_most(2) - from_most(1);
  } else if (rgb[1] == most) {
    hue = static_cast<float>(2.0 + from_most(0) - from_most(2));
  } else {
    hue = static_cast<float>(4.0 + from_most(1) - from_most(0));
  }
  const double turn = hue / 6.0 + 1.0;  // 5/6 .. 11/6
  hue = static_cast<float>(turn >= 1.0 ? turn - 1.0 : turn);
  return {.hue = clip8(static_cast<int>(hue * 255.0)),
          .saturation = clip8(static_cast<int>(saturation * 255.0)),
          .value = most};
}

// What a pixel's way back to RGB has of divisions, for all 256 values.
struct HueTables {
  std::array<std::uint8_t, 256> sector{};  // the sixth of the circle
  std::array<float, 256> within{};         // of the sixth, 0..1
  std::array<float, 256> share{};          // value / 255

  HueTables() {
    for (std::size_t i = 0; i < 256; ++i) {
      const double sixths = static_cast<double>(i) * 6.0 / 255.0;
      const int whole = static_cast<int>(sixths);
      within.at(i) = static_cast<float>(sixths - whole);
      sector.at(i) = static_cast<std::uint8_t>(whole % 6);
      share.at(i) = static_cast<float>(static_cast<double>(i) / 255.0);
    }
  }
};

void to_rgb(const Hsv& hsv, const HueTables& tables, std::uint8_t* rgb) {
  if (hsv.saturation == 0) {
    std::fill_n(rgb, 3, hsv.value);
    return;
  }
  const unsigned sector = tables.sector[hsv.hue];
  const float within = tables.within[hsv.hue];
  const float saturation = tables.share[hsv.saturation];
  const auto share = [&](double part) {  // std::round of what is not negative, which is slow
    const double exact = hsv.value * part;
    const int whole = static_cast<int>(exact);
    return static_cast<std::uint8_t>(whole + static_cast<int>(exact - whole >= 0.5));
  };
  const float falling_part = saturation * within;
  const double changing_part = sector % 2 == 1 ? falling_part : saturation * (1.0 - within);
  // Where the highest, the lowest and the changing value go in each sixth.
  struct Places {
    std::uint8_t highest, lowest, changing;
  };
  constexpr std::array<Places, 6> kPlaces = {
      {{0, 2, 1}, {1, 2, 0}, {1, 0, 2}, {2, 0, 1}, {2, 1, 0}, {0, 1, 2}}};
  const Places& places = kPlaces[sector];
  rgb[places.highest] = hsv.value;
  rgb[places.lowest] = share(1.0 - saturation);
  rgb[places.changing] = share(1.0 - changing_part);
}

// --- blur ---

std::vector<float> gaussian_weights(int kernel_px, double sigma) {
  std::vector<double> exact(static_cast<std::size_t>(kernel_px));
  const int reach = kernel_px / 2;
  double sum = 0;
  for (int i = 0; i < kernel_px; ++i) {
    const double distance = (i - reach) / sigma;
    exact[static_cast<std::size_t>(i)] = std::exp(-0.5 * distance * distance);
    sum += exact[static_cast<std::size_t>(i)];
  }
  std::vector<float> weights;
  for (const double weight : exact) {
    weights.push_back(static_cast<float>(weight / sum));
  }
  return weights;
}

// The border pixel itself is not repeated: -1 is 1.
int reflected(int position, int size) {
  position = std::abs(position);
  return position < size ? position : 2 * (size - 1) - position;
}

// --- places ---

// Where a pixel of the result comes from: column a x + b y + c, row d x + e y + f.
struct Affine {
  double a = 1;
  double b = 0;
  double c = 0;
  double d = 0;
  double e = 1;
  double f = 0;
};

std::int64_t fixed16(double value) {
  return static_cast<std::int64_t>(std::floor(value * 65536.0 + 0.5));
}

// Image.transform with NEAREST: pixel centres, in fixed point of 16 bits that is added up.
void transform(Canvas canvas, const Affine& from, Rgb fill) {
  const std::vector<std::uint8_t> source = copy_of(canvas);
  const std::int64_t a = fixed16(from.a);
  const std::int64_t b = fixed16(from.b);
  const std::int64_t d = fixed16(from.d);
  const std::int64_t e = fixed16(from.e);
  std::int64_t row_x = fixed16(from.c + from.a * 0.5 + from.b * 0.5);
  std::int64_t row_y = fixed16(from.f + from.d * 0.5 + from.e * 0.5);
  std::uint8_t* out = canvas.rgb;
  for (int y = 0; y < canvas.height; ++y, row_x += b, row_y += e) {
    std::int64_t at_x = row_x;
    std::int64_t at_y = row_y;
    for (int x = 0; x < canvas.width; ++x, at_x += a, at_y += d, out += 3) {
      const std::int64_t from_x = at_x >> 16;
      const std::int64_t from_y = at_y >> 16;
      const bool is_inside =
          from_x >= 0 && from_x < canvas.width && from_y >= 0 && from_y < canvas.height;
      const std::uint8_t* pixel =
          is_inside ? source.data() + (from_y * canvas.width + from_x) * 3 : fill.data();
      std::copy_n(pixel, 3, out);
    }
  }
}

// Python's round(value, 15), for values up to 1.
double round15(double value) {
  return std::nearbyint(value * 1e15) / 1e15;
}

}  // namespace

void adjust_brightness(Canvas canvas, double factor) {
  const auto alpha = static_cast<float>(factor);
  apply(canvas, make_table([=](int value) { return blend(0, value, alpha); }));
}

void adjust_contrast(Canvas canvas, double factor) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < num_bytes(canvas); i += 3) {
    sum += luma(canvas.rgb + i);
  }
  const auto mean =
      static_cast<int>(static_cast<double>(sum) / static_cast<double>(num_pixels(canvas)) + 0.5);
  const auto alpha = static_cast<float>(factor);
  apply(canvas, make_table([=](int value) { return blend(mean, value, alpha); }));
}

void adjust_saturation(Canvas canvas, double factor) {
  const auto alpha = static_cast<float>(factor);
  for (std::size_t i = 0; i < num_bytes(canvas); i += 3) {
    const int grey = luma(canvas.rgb + i);
    for (std::size_t c = 0; c < 3; ++c) {
      canvas.rgb[i + c] = blend(grey, canvas.rgb[i + c], alpha);
    }
  }
}

void adjust_sharpness(Canvas canvas, double factor) {
  if (canvas.width < 3 || canvas.height < 3) {
    return;  // all border
  }
  const auto alpha = static_cast<float>(factor);
  const std::vector<std::uint8_t> source = copy_of(canvas);
  const auto row = static_cast<std::ptrdiff_t>(canvas.width) * 3;
  for (std::ptrdiff_t y = 1; y + 1 < canvas.height; ++y) {
    const std::uint8_t* middle = source.data() + y * row;
    const std::uint8_t* above = middle - row;
    const std::uint8_t* below = middle + row;
    std::uint8_t* out = canvas.rgb + y * row;
    for (std::ptrdiff_t i = 3; i + 3 < row; ++i) {
      // Weights 1, in the centre 5, over 13. Never a half, so whole numbers give what Pillow's
      // float32 sum gives.
      const int sum = above[i - 3] + above[i] + above[i + 3] + middle[i - 3] + 5 * middle[i] +
                      middle[i + 3] + below[i - 3] + below[i] + below[i + 3];
      out[i] = blend((sum + 6) / 13, middle[i], alpha);
    }
  }
}

void posterize(Canvas canvas, int bits) {
  const int kept = ~((1 << (8 - bits)) - 1);
  apply(canvas, make_table([=](int value) { return static_cast<std::uint8_t>(value & kept); }));
}

void solarize(Canvas canvas, double threshold) {
  apply(canvas, make_table([=](int value) {
          return static_cast<std::uint8_t>(value < threshold ? value : 255 - value);
        }));
}

void autocontrast(Canvas canvas) {
  const auto counts = histograms(canvas);
  apply(canvas, std::array{stretched(counts[0]), stretched(counts[1]), stretched(counts[2])});
}

void equalize(Canvas canvas) {
  const auto counts = histograms(canvas);
  apply(canvas, std::array{flattened(counts[0]), flattened(counts[1]), flattened(counts[2])});
}

void invert(Canvas canvas) {
  apply(canvas, make_table([](int value) { return static_cast<std::uint8_t>(255 - value); }));
}

void adjust_hue(Canvas canvas, double turns) {
  const int shift = static_cast<int>(turns * 255);
  const HueTables tables;
  for (std::size_t i = 0; i < num_bytes(canvas); i += 3) {
    Hsv hsv = to_hsv(canvas.rgb + i);
    hsv.hue = static_cast<std::uint8_t>(hsv.hue + shift);  // wraps
    to_rgb(hsv, tables, canvas.rgb + i);
  }
}

void grayscale(Canvas canvas) {
  for (std::size_t i = 0; i < num_bytes(canvas); i += 3) {
    std::fill_n(canvas.rgb + i, 3, luma(canvas.rgb + i));
  }
}

void gaussian_blur(Canvas canvas, int kernel_px, double sigma) {
  const std::vector<float> weights = gaussian_weights(kernel_px, sigma);
  const int reach = kernel_px / 2;
  const std::vector<std::uint8_t> source = copy_of(canvas);
  const auto row = static_cast<std::size_t>(canvas.width) * 3;
  std::vector<float> columns(row);  // a row of the picture, summed over its rows
  std::vector<float> padded(row + static_cast<std::size_t>(reach) * 6);
  std::vector<float> sums(row);
  for (int y = 0; y < canvas.height; ++y) {
    std::fill(columns.begin(), columns.end(), 0.0F);
    for (int k = 0; k < kernel_px; ++k) {
      const std::uint8_t* in =
          source.data() + static_cast<std::size_t>(reflected(y + k - reach, canvas.height)) * row;
      const float weight = weights[static_cast<std::size_t>(k)];
      for (std::size_t i = 0; i < row; ++i) {
        columns[i] += weight * static_cast<float>(in[i]);
      }
    }
    for (int x = -reach; x < canvas.width + reach; ++x) {
      std::copy_n(columns.data() + static_cast<std::ptrdiff_t>(reflected(x, canvas.width)) * 3, 3,
                  padded.data() + static_cast<std::ptrdiff_t>(x + reach) * 3);
    }
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (int k = 0; k < kernel_px; ++k) {
      const float* in = padded.data() + static_cast<std::ptrdiff_t>(k) * 3;
      const float weight = weights[static_cast<std::size_t>(k)];
      for (std::size_t i = 0; i < row; ++i) {
        sums[i] += weight * in[i];
      }
    }
    std::uint8_t* out = canvas.rgb + static_cast<std::size_t>(y) * row;
    for (std::size_t i = 0; i < row; ++i) {
      out[i] = clip8(static_cast<int>(std::nearbyint(sums[i])));
    }
  }
}

void shear_x(Canvas canvas, double slope, Rgb fill) {
  // Through degrees and back, as torchvision takes it.
  const double degrees = std::atan(slope) * (180.0 / std::numbers::pi);
  transform(canvas, {.b = std::tan(degrees * (std::numbers::pi / 180.0))}, fill);
}

void shear_y(Canvas canvas, double slope, Rgb fill) {
  const double degrees = std::atan(slope) * (180.0 / std::numbers::pi);
  const double angle = degrees * (std::numbers::pi / 180.0);
  transform(canvas, {.d = std::sin(angle) / std::cos(angle)}, fill);
}

void translate(Canvas canvas, int right_px, int down_px, Rgb fill) {
  transform(canvas, {.c = -static_cast<double>(right_px), .f = -static_cast<double>(down_px)},
            fill);
}

void rotate(Canvas canvas, double degrees, Rgb fill) {
  // Into 0..360 first, as Python's % does.
  double positive = std::fmod(degrees, 360.0);
  positive = positive < 0 ? positive + 360.0 : positive;
  const double angle = -positive * (std::numbers::pi / 180.0);
  Affine from = {.a = round15(std::cos(angle)),
                 .b = round15(std::sin(angle)),
                 .d = round15(-std::sin(angle)),
                 .e = round15(std::cos(angle))};
  const double center_x = canvas.width / 2.0;
  const double center_y = canvas.height / 2.0;
  from.c = from.a * -center_x + from.b * -center_y + center_x;
  from.f = from.d * -center_x + from.e * -center_y + center_y;
  transform(canvas, from, fill);
}

void flip_vertical(Canvas canvas) {
  const auto row = static_cast<std::size_t>(canvas.width) * 3;
  std::uint8_t* top = canvas.rgb;
  std::uint8_t* bottom = canvas.rgb + num_bytes(canvas) - row;
  for (; top < bottom; top += row, bottom -= row) {
    std::swap_ranges(top, top + row, bottom);
  }
}

void fill_box(Canvas canvas, const Box& box, Rgb fill) {
  for (int y = box.y; y < box.y + box.height; ++y) {
    std::uint8_t* out = canvas.rgb + (static_cast<std::ptrdiff_t>(y) * canvas.width + box.x) * 3;
    for (int x = 0; x < box.width; ++x, out += 3) {
      std::copy_n(fill.data(), 3, out);
    }
  }
}

}  // namespace orchard::data
