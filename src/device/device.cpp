#include "device/device.hpp"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <torch/cuda.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "device/cuda.hpp"

namespace orchard::device {
namespace {

// Why a kind of device is not there, or nothing when it is.
std::optional<std::string> missing(torch::DeviceType type, std::int64_t index) {
  if (type == torch::kCUDA) {
    if (!at::hasCUDA()) {
      return torch::cuda::device_count() == 0 && cuda::is_built()
                 ? "no NVIDIA GPU or driver is there"
                 : "this LibTorch is built without CUDA";
    }
    const auto count = static_cast<std::int64_t>(torch::cuda::device_count());
    if (index >= count) {
      return str("there are only ", count, " CUDA devices (0 to ", count - 1, ")");
    }
  }
  if (type == torch::kMPS && !at::hasMPS()) {
#ifdef __APPLE__
    return "this LibTorch sees no Metal GPU (it needs macOS 14 on Apple silicon, not a virtual "
           "machine, and an arm64 build)";
#else
    return "mps exists on Apple silicon alone";
#endif
  }
  return std::nullopt;
}

// What keeps a device from being used: it is missing, or it fails its test.
std::optional<std::string> unusable(torch::Device device) {
  if (auto why = missing(device.type(), device.has_index() ? device.index() : 0)) {
    return why;
  }
  if (auto why = self_test(device)) {
    return "its self-test failed: " + *why;
  }
  return std::nullopt;
}

std::string device_name(torch::Device device) {
  switch (device.type()) {
    case torch::kCUDA:
      return cuda::name(device.index()) + " (" + device.str() + ")";
    case torch::kMPS:
      return "Apple GPU (mps)";
    default:
      return str("CPU, ", at::get_num_threads(),
                 at::get_num_threads() == 1 ? " thread" : " threads");
  }
}

Device make_device(torch::Device device, std::string reason) {
  const bool is_cuda = device.is_cuda();
  return {.torch = device,
          .name = device_name(device),
          .reason = std::move(reason),
          .channels_last = !device.is_mps(),
          .pinned_copies = is_cuda};
}

torch::Device parse(const std::string& asked) {
  const std::string kind = asked.substr(0, asked.find(':'));
  const std::vector<std::string> kinds = {"auto", "cpu", "cuda", "mps"};
  const std::string index = kind == asked ? "" : asked.substr(kind.size() + 1);
  const bool index_right =
      kind == asked ||
      (kind == "cuda" && !index.empty() && index.size() <= 2 &&
       std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; }));
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end() || !index_right) {
    throw Error(ErrorKind::Config,
                "device: unknown device '" + asked + "'" + did_you_mean(kind, kinds),
                "use auto, cpu, cuda, cuda:N or mps");
  }
  if (kind == "cuda") {
    return {torch::kCUDA, static_cast<c10::DeviceIndex>(index.empty() ? 0 : std::stoi(index))};
  }
  return kind == "mps" ? torch::kMPS : torch::kCPU;
}

}  // namespace

Device choose(const std::string& asked, std::int64_t threads) {
  if (threads > 0) {
    at::set_num_threads(static_cast<int>(threads));
  }
  const torch::Device wanted = parse(asked);
  if (asked != "auto") {
    if (const auto why = unusable(wanted)) {
      throw Error(ErrorKind::Device, "device " + asked + " cannot be used: " + *why,
                  "use --device auto, which takes the best device that works, or --device cpu");
    }
    return make_device(wanted, "asked for " + asked);
  }
  std::vector<std::string> passed_over;
  for (const torch::Device candidate :
       {torch::Device(torch::kCUDA, 0), torch::Device(torch::kMPS)}) {
    const std::string kind = candidate.is_cuda() ? "cuda" : "mps";
    const auto why = unusable(candidate);
    if (!why) {
      passed_over.insert(passed_over.begin(), "auto");
      return make_device(candidate, join(passed_over, "; "));
    }
    // A device that is there but computes wrongly is worth more than a word in the start block.
    if (!missing(candidate.type(), 0)) {
      log::warn(kind + " is there but is not used: " + *why);
    }
    passed_over.push_back("no " + kind + ": " + *why);
  }
  if (const auto why = unusable(torch::kCPU)) {
    throw Error(ErrorKind::Device, "the CPU cannot be used: " + *why,
                "install LibTorch again, for this processor");
  }
  return make_device(torch::kCPU, "auto; " + join(passed_over, "; "));
}

std::vector<DeviceReport> survey() {
  std::vector<torch::Device> candidates;
  const auto num_cuda = std::max<c10::DeviceIndex>(1, torch::cuda::device_count());
  for (c10::DeviceIndex i = 0; i < num_cuda; ++i) {
    candidates.emplace_back(torch::kCUDA, i);
  }
  candidates.emplace_back(torch::kMPS);
  candidates.emplace_back(torch::kCPU);
  std::vector<DeviceReport> reports;
  for (const auto& candidate : candidates) {
    const auto why = unusable(candidate);
    reports.push_back({.kind = candidate.str(),
                       .usable = !why,
                       .detail = why ? *why : device_name(candidate) + ", self-test passed"});
  }
  return reports;
}

std::function<std::shared_ptr<std::uint8_t>(std::size_t)> batch_allocator(const Device& device) {
  if (!device.pinned_copies) {
    return {};
  }
  at::Allocator* allocator = at::globalContext().getPinnedMemoryAllocator(device.torch.type());
  return [allocator](std::size_t num_bytes) {
    auto memory = std::make_shared<at::DataPtr>(allocator->allocate(num_bytes));
    return std::shared_ptr<std::uint8_t>(memory, static_cast<std::uint8_t*>(memory->get()));
  };
}

void seed_all(std::uint64_t seed) {
  torch::manual_seed(seed);
}

std::map<std::string, torch::Tensor> generator_states(const Device& device) {
  std::map<std::string, torch::Tensor> states;
  for (const torch::Device each : {torch::Device(torch::kCPU), device.torch}) {
    auto generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    states[c10::DeviceTypeName(each.type(), true)] = generator.get_state().clone();
  }
  return states;
}

void set_generator_states(const Device& device,
                          const std::map<std::string, torch::Tensor>& states) {
  for (const torch::Device each : {torch::Device(torch::kCPU), device.torch}) {
    const auto found = states.find(c10::DeviceTypeName(each.type(), true));
    if (found == states.end()) {
      log::info(str("the checkpoint holds no random state of ", each.str(),
                    " (it was made on another device): dropout draws anew there"));
      continue;
    }
    auto generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    try {
      generator.set_state(found->second);
    } catch (const c10::Error& e) {
      throw Error(ErrorKind::Checkpoint,
                  str("the random state of ", each.str(), " cannot be restored: ", first_line(e)),
                  "the checkpoint was made by another LibTorch version; resume with that one");
    }
  }
}

}  // namespace orchard::device
