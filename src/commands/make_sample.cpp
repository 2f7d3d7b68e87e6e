#include <cstdio>

#include "base/text.hpp"
#include "commands/commands.hpp"
#include "data/sample_set.hpp"

namespace orchard::commands {

int make_sample(const MakeSampleArgs& args) {
  data::make_sample_set({.root = args.root,
                         .train_per_class = args.train_per_class,
                         .val_per_class = args.val_per_class,
                         .seed = static_cast<std::uint64_t>(args.seed)});
  const auto classes = data::sample_set_classes();
  const auto num_classes = static_cast<std::int64_t>(classes.size());
  std::printf("wrote       %s: %s train and %s val images in %s classes (%s)\n", args.root.c_str(),
              thousands(args.train_per_class * num_classes).c_str(),
              thousands(args.val_per_class * num_classes).c_str(), thousands(num_classes).c_str(),
              join(classes, ", ").c_str());
  return 0;
}

}  // namespace orchard::commands
