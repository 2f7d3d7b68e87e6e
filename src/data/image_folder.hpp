// A folder of images, one sub-folder a class: root/{train,val}/<class>/**/image.jpg.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace orchard::data {

struct Sample {
  std::string path;
  std::int64_t label = 0;  // index into classes
};

struct ImageFolder {
  std::filesystem::path root;
  std::vector<std::string> classes;  // sorted by bytes, as torchvision does: "1" < "10" < "2"
  std::vector<Sample> samples;       // sorted by class, then by path (bytes)
  std::vector<std::string>
      notes;  // one sentence for each thing a person should know of: empty
              // classes, files of unknown kinds, stray files beside the classes

  // Hash over classes, relative paths and labels: tells a changed data set at resume.
  std::string fingerprint() const;
};

// The folder of a split under root: "train", or for evaluation the first of val, valid, validation.
// Throws Error(Data) that says what was looked for and what is there.
std::filesystem::path find_train(const std::filesystem::path& root);
std::filesystem::path find_val(const std::filesystem::path& root);
bool has_val(const std::filesystem::path& root);

// Scans a split. Sub-folders of `dir` are the classes; hidden names are skipped; links are
// followed, loops are not. Throws Error(Data) when there are no classes or no images, with a hint
// for a flat folder of images; Stopped on a signal.
ImageFolder scan(const std::filesystem::path& dir);

// The same for an evaluation split, with the classes of the training split: labels go by name. A
// class folder that training does not have is an Error(Data) that names it; one that is missing is
// a note.
ImageFolder scan(const std::filesystem::path& dir, const std::vector<std::string>& classes);

// Image files for prediction: a file as it is (whatever its name), a folder recursively, sorted by
// bytes. Throws Error(Data) when a path is missing or a folder holds no image.
std::vector<std::string> list_images(const std::vector<std::string>& paths);

bool has_image_extension(
    const std::filesystem::path& path);  // jpg jpeg png ppm bmp pgm tif tiff webp

}  // namespace orchard::data
