#include "device/device.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include "base/error.hpp"

using namespace orchard;
using namespace orchard::device;

TEST_CASE("the CPU passes the self-test and is what auto takes when there is nothing else") {
  CHECK_FALSE(self_test(torch::kCPU).has_value());
  const Device device = choose("cpu", 1);
  CHECK(device.torch.is_cpu());
  CHECK(device.name == "CPU, 1 thread");
  CHECK_FALSE(device.pinned_copies);
  if (!at::hasCUDA() && !at::hasMPS()) {
    const Device automatic = choose("auto", 2);
    CHECK(automatic.torch.is_cpu());
    CHECK(automatic.reason.find("no cuda") != std::string::npos);
    CHECK(automatic.reason.find("no mps") != std::string::npos);
  }
}

TEST_CASE("a device that is asked for and not there is an error, never another device") {
  if (!at::hasMPS()) {
    try {
      choose("mps", 0);
      FAIL("must throw");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::Device);
    }
  }
  CHECK_THROWS_AS(choose("cuda:99", 0), Error);
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "mps:0", "", "cuda:123456789012"}) {
    try {
      choose(wrong, 0);
      FAIL("must throw");
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::Config);
    }
  }
}

TEST_CASE("the self-test notices a device that computes nothing") {
  // The meta device runs every operator without values: reading a result from it fails.
  CHECK(self_test(torch::kMeta).has_value());
}

TEST_CASE("seeds and generator states") {
  const Device device = choose("cpu", 0);
  seed_all(5);
  const auto first = torch::randn({3});
  const auto states = generator_states(device);
  const auto second = torch::randn({3});
  set_generator_states(device, states);
  CHECK(torch::equal(torch::randn({3}), second));
  seed_all(5);
  CHECK(torch::equal(torch::randn({3}), first));
}

TEST_CASE("out of memory is known by type and by text") {
  CHECK(is_out_of_memory(std::bad_alloc()));
  CHECK(is_out_of_memory(std::runtime_error("MPS backend out of memory (MPS allocated: 1 GB)")));
  CHECK(is_out_of_memory(std::runtime_error("Invalid buffer size: 20.00 GiB")));
  CHECK_FALSE(is_out_of_memory(std::runtime_error("mat1 and mat2 shapes cannot be multiplied")));
  bool caught = false;
  try {
    auto huge = torch::empty({std::int64_t{1} << 50});
  } catch (const std::exception& e) {
    caught = is_out_of_memory(e);
  }
  CHECK(caught);
}

TEST_CASE("memory in use is told") {
  CHECK(memory_in_use_bytes(choose("cpu", 0)) > 1'000'000);
}
