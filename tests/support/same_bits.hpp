#pragma once

#include <torch/types.h>

#include <cstring>

namespace orchard {

// Type, size and every bit; NaN equals the same NaN, 0 does not equal -0.
inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return false;
  }
  const auto x = a.detach().contiguous();
  const auto y = b.detach().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace orchard
