// A drawn data set for a first try: shapes filled with textures, so that neither colour nor
// brightness tells the classes apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace orchard::data {

struct SampleSetOptions {
  std::filesystem::path root;
  std::int64_t train_per_class = 140;
  std::int64_t val_per_class = 25;
  std::uint64_t seed = 1;
};

std::vector<std::string> sample_set_classes();

// Writes root/{train,val}/<class>/NNNN.jpg. Complete or not at all: it draws into
// `<root>.part-<pid>` and renames. Throws Error(Data) when root exists already or cannot be
// written; Stopped on a signal.
void make_sample_set(const SampleSetOptions& options);

}  // namespace orchard::data
