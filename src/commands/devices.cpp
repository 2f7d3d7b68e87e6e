#include <cstdio>

#include "commands/commands.hpp"
#include "device/device.hpp"

namespace orchard::commands {

int devices() {
  for (const auto& report : device::survey()) {
    std::printf("%-8s %-4s %s\n", report.kind.c_str(), report.usable ? "yes" : "no",
                report.detail.c_str());
  }
  const auto chosen = device::choose("auto", 0);
  std::printf("auto takes %s\n", chosen.torch.str().c_str());
  return 0;
}

}  // namespace orchard::commands
