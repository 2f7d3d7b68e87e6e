#include "models/model.hpp"

#include <algorithm>
#include <cstdio>

#include "base/text.hpp"
#include "commands/commands.hpp"

namespace orchard::commands {

int models() {
  std::size_t width = 0;
  for (const auto& name : models::model_names()) {
    width = std::max(width, name.size());
  }
  for (const auto& name : models::model_names()) {
    const auto model = models::make_model({.name = name, .num_classes = 1000});
    std::printf("%-*s  %11s parameters at 1,000 classes\n", static_cast<int>(width), name.c_str(),
                thousands(models::num_parameters(*model)).c_str());
  }
  return 0;
}

}  // namespace orchard::commands
