#include "data/resample.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace orchard::data {
namespace {

constexpr int kPrecisionBits = 32 - 8 - 2;
constexpr std::int32_t kHalf = 1 << (kPrecisionBits - 1);

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) {
    return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  }
  if (x < 2.0) {
    return (((x - 5) * x + 8) * x - 4) * kA;
  }
  return 0.0;
}

std::uint8_t clip8(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
}

// For each output position of a range: the first input position and the weights.
struct Weights {
  int taps = 0;  // weights kept for each position
  std::vector<int> first;
  std::vector<int> count;
  std::vector<std::int32_t> values;

  const std::int32_t* of(int position) const {
    return values.data() + static_cast<std::size_t>(position) * static_cast<std::size_t>(taps);
  }
};

Weights make_weights(int in_size, int out_size, int begin, int length,
                     config::Interpolation interpolation) {
  const bool is_cubic = interpolation == config::Interpolation::Bicubic;
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = (is_cubic ? 2.0 : 1.0) * filter_scale;
  Weights weights;
  weights.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  weights.values.resize(static_cast<std::size_t>(length) * static_cast<std::size_t>(weights.taps));
  std::vector<double> exact(static_cast<std::size_t>(weights.taps));
  for (int i = 0; i < length; ++i) {
    const double center = (begin + i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int last = std::min(in_size, static_cast<int>(center + support + 0.5));
    double sum = 0;
    for (int x = first; x < last; ++x) {
      const double distance = (x - center + 0.5) * (1.0 / filter_scale);
      const double weight = is_cubic ? bicubic(distance) : bilinear(distance);
      exact[static_cast<std::size_t>(x - first)] = weight;
      sum += weight;
    }
    auto* fixed = weights.values.data() +
                  static_cast<std::size_t>(i) * static_cast<std::size_t>(weights.taps);
    for (int k = 0; k < last - first; ++k) {
      const double weight = sum != 0.0 ? exact[static_cast<std::size_t>(k)] / sum
                                       : exact[static_cast<std::size_t>(k)];
      const double rounded = weight * (1 << kPrecisionBits) + (weight < 0 ? -0.5 : 0.5);
      fixed[k] = static_cast<std::int32_t>(rounded);
    }
    weights.first.push_back(first);
    weights.count.push_back(last - first);
  }
  return weights;
}

void resize_row(const std::uint8_t* in, const Weights& weights, int length, std::uint8_t* out) {
  for (int i = 0; i < length; ++i) {
    const std::int32_t* weight = weights.of(i);
    const std::uint8_t* pixel =
        in + static_cast<std::ptrdiff_t>(weights.first[static_cast<std::size_t>(i)]) * 3;
    const int count = weights.count[static_cast<std::size_t>(i)];
    std::int32_t red = kHalf;
    std::int32_t green = kHalf;
    std::int32_t blue = kHalf;
    for (int k = 0; k < count; ++k, pixel += 3) {
      red += pixel[0] * weight[k];
      green += pixel[1] * weight[k];
      blue += pixel[2] * weight[k];
    }
    *out++ = clip8(red);
    *out++ = clip8(green);
    *out++ = clip8(blue);
  }
}

}  // namespace

void resize(const Pixels& in, const Box& box, int out_width, int out_height, const Box& window,
            config::Interpolation interpolation, std::uint8_t* out) {
  const auto in_row_bytes = static_cast<std::ptrdiff_t>(in.width) * 3;
  const std::uint8_t* corner =
      in.rgb + box.y * in_row_bytes + static_cast<std::ptrdiff_t>(box.x) * 3;
  const auto out_row_bytes = static_cast<std::size_t>(window.width) * 3;
  const bool needs_columns = out_width != box.width;
  const bool needs_rows = out_height != box.height;

  Weights column_weights;
  if (needs_columns) {
    column_weights = make_weights(box.width, out_width, window.x, window.width, interpolation);
  }
  // Row `y` of the box after the pass over columns.
  const auto make_row = [&](int y, std::uint8_t* row) {
    const std::uint8_t* source = corner + y * in_row_bytes;
    if (needs_columns) {
      resize_row(source, column_weights, window.width, row);
    } else {
      std::memcpy(row, source + static_cast<std::ptrdiff_t>(window.x) * 3, out_row_bytes);
    }
  };
  if (!needs_rows) {
    for (int y = 0; y < window.height; ++y) {
      make_row(window.y + y, out + static_cast<std::size_t>(y) * out_row_bytes);
    }
    return;
  }
  const Weights row_weights =
      make_weights(box.height, out_height, window.y, window.height, interpolation);
  const int first_row = row_weights.first.front();
  const int last_row = row_weights.first.back() + row_weights.count.back();
  std::vector<std::uint8_t> rows(static_cast<std::size_t>(last_row - first_row) * out_row_bytes);
  for (int y = first_row; y < last_row; ++y) {
    make_row(y, rows.data() + static_cast<std::size_t>(y - first_row) * out_row_bytes);
  }
  std::vector<std::int32_t> sums(out_row_bytes);
  for (int y = 0; y < window.height; ++y) {
    const auto at = static_cast<std::size_t>(y);
    std::fill(sums.begin(), sums.end(), kHalf);
    const std::int32_t* weight = row_weights.of(y);
    for (int k = 0; k < row_weights.count[at]; ++k) {
      const std::uint8_t* row =
          rows.data() +
          static_cast<std::size_t>(row_weights.first[at] + k - first_row) * out_row_bytes;
      for (std::size_t i = 0; i < out_row_bytes; ++i) {
        sums[i] += row[i] * weight[k];
      }
    }
    std::uint8_t* target = out + at * out_row_bytes;
    for (std::size_t i = 0; i < out_row_bytes; ++i) {
      target[i] = clip8(sums[i]);
    }
  }
}

}  // namespace orchard::data
