// The one place that knows devices by name: choosing one, proving that it computes, its memory, its
// random generators.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace orchard::device {

struct Device {
  torch::Device torch = torch::kCPU;
  std::string name;    // "NVIDIA H200 (cuda:0)", "Apple GPU (mps)", "CPU, 2 threads"
  std::string reason;  // why this one: "auto: cuda is not built in; mps is not built in"
  // Keep images and weights in channels_last order. Never on mps: training there is wrong in
  // LibTorch 2.13 (pytorch issues 175189, 175190).
  bool channels_last = false;
  // Stage batches in pinned memory and copy them without blocking. CUDA alone: on mps both are
  // unsafe in LibTorch 2.13 (pytorch issues 189690, 181374).
  bool pinned_copies = false;
};

// `asked` is auto, cpu, cuda, cuda:N or mps. auto takes the first of cuda, mps, cpu that is there
// and passes the self-test; what was passed over is logged with the reason. Anything else that is
// missing or fails its test is an Error(Device). `threads` > 0 sets LibTorch's CPU threads.
Device choose(const std::string& asked, std::int64_t threads);

// One line for each kind of device: what is there, and whether it passes the self-test.
struct DeviceReport {
  std::string kind;
  bool usable = false;
  std::string detail;
};
std::vector<DeviceReport> survey();

// Convolution, batch norm, pooling, linear, loss, backward and one SGD step on the device, compared
// with the CPU. Returns what is wrong, or nothing.
std::optional<std::string> self_test(torch::Device device);

// Memory for batches: pinned where Device::pinned_copies says so, else an empty function (plain
// memory).
std::function<std::shared_ptr<std::uint8_t>(std::size_t num_bytes)> batch_allocator(
    const Device& device);

// --- random generators ---
void seed_all(std::uint64_t seed);
std::map<std::string, torch::Tensor> generator_states(
    const Device& device);  // "cpu", "cuda", "mps"
void set_generator_states(const Device& device, const std::map<std::string, torch::Tensor>& states);

// --- memory ---
void limit_memory(const Device& device, double fraction);  // 0: no change
void empty_cache(const Device& device);
void synchronize(const Device& device);
// Bytes in use: of the device, or resident of the process on the CPU.
std::int64_t memory_in_use_bytes(const Device& device);
// Whether an exception says that memory ran out (on mps it is a plain c10::Error, known by its
// text).
bool is_out_of_memory(const std::exception& error);
// The first line of what LibTorch says, without its stack.
std::string first_line(const std::exception& error);

}  // namespace orchard::device
