// What only LibTorch's CUDA headers can tell. cuda.cpp is built where LibTorch has CUDA,
// no_cuda.cpp elsewhere.
#pragma once

#include <string>

namespace orchard::device::cuda {

bool is_built();
std::string name(int index);
void limit_memory(double fraction, int index);  // share of the device's memory

}  // namespace orchard::device::cuda
