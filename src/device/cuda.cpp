#include "device/cuda.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace orchard::device::cuda {

bool is_built() {
  return true;
}

std::string name(int index) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index))->name;
}

void limit_memory(double fraction, int index) {
  c10::cuda::CUDACachingAllocator::setMemoryFraction(fraction,
                                                     static_cast<c10::DeviceIndex>(index));
}

}  // namespace orchard::device::cuda
