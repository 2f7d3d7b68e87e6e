#include "base/error.hpp"
#include "device/cuda.hpp"

namespace orchard::device::cuda {
namespace {

[[noreturn]] void fail() {
  throw Error(ErrorKind::Internal, "a CUDA function was called in a build without CUDA",
              "report this fault");
}

}  // namespace

bool is_built() {
  return false;
}
std::string name(int /*index*/) {
  fail();
}
void limit_memory(double /*fraction*/, int /*index*/) {
  fail();
}

}  // namespace orchard::device::cuda
