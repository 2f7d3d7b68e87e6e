#include <ATen/Context.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/cuda.h>

#include <fstream>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda.hpp"
#include "device/device.hpp"

#ifdef __APPLE__
#include <mach/mach.h>
#else
#include <unistd.h>
#endif

namespace orchard::device {
namespace {

std::int64_t resident_bytes() {
#ifdef __APPLE__
  mach_task_basic_info info{};
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  const bool known = task_info(mach_task_self(), MACH_TASK_BASIC_INFO,
                               reinterpret_cast<task_info_t>(&info), &count) == KERN_SUCCESS;
  return known ? static_cast<std::int64_t>(info.resident_size) : 0;
#else
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
#endif
}

}  // namespace

void limit_memory(const Device& device, double fraction) {
  if (fraction <= 0) {
    return;
  }
  try {
    if (device.torch.is_mps()) {
      at::detail::getMPSHooks().setMemoryFraction(fraction);
    } else if (device.torch.is_cuda()) {
      if (fraction > 1) {
        throw Error(ErrorKind::Config,
                    str("memory.fraction: ", fraction, " is more than a CUDA device has"),
                    "use a value from 0 to 1");
      }
      cuda::limit_memory(fraction, device.torch.index());
    }
  } catch (const c10::Error& e) {
    throw Error(ErrorKind::Device, "memory.fraction cannot be set: " + first_line(e),
                "use another memory.fraction, or 0 for no limit");
  }
}

void empty_cache(const Device& device) {
  if (device.torch.is_mps()) {
    at::detail::getMPSHooks().emptyCache();
  } else if (device.torch.is_cuda()) {
    c10::getDeviceAllocator(torch::kCUDA)->emptyCache();
  }
}

void synchronize(const Device& device) {
  if (device.torch.is_mps()) {
    at::detail::getMPSHooks().deviceSynchronize();
  } else if (device.torch.is_cuda()) {
    torch::cuda::synchronize(device.torch.index());
  }
}

std::int64_t memory_in_use_bytes(const Device& device) {
  if (device.torch.is_mps()) {
    return static_cast<std::int64_t>(at::detail::getMPSHooks().getDriverAllocatedMemory());
  }
  if (device.torch.is_cuda()) {
    const auto stats = c10::getDeviceAllocator(torch::kCUDA)->getDeviceStats(device.torch.index());
    return stats.reserved_bytes[0].current;  // entry 0 is the sum over all pools
  }
  return resident_bytes();
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return true;
  }
  const std::string text = lower(first_line(error));
  return text.find("out of memory") != std::string::npos ||
         text.find("can't allocate memory") != std::string::npos ||
         text.find("invalid buffer size") != std::string::npos;
}

std::string first_line(const std::exception& error) {
  std::string text = error.what();
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) {
    text = torch_error->what_without_backtrace();
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace orchard::device
