#include "data/image_folder.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <system_error>

#include "base/error.hpp"
#include "base/stop.hpp"
#include "base/text.hpp"

namespace orchard::data {
namespace {

namespace fs = std::filesystem;

// What lies below one class folder.
struct Found {
  std::vector<std::string> images;
  std::int64_t num_others = 0;
  std::string first_other;
  std::vector<std::string> loops;  // links back to a folder above them, not followed
};

bool is_hidden(const fs::path& path) {
  return path.filename().native().starts_with(".");
}

[[noreturn]] void throw_unreadable(const fs::path& path, const std::string& reason) {
  throw Error(ErrorKind::Data, "cannot read the folder '" + path.string() + "': " + reason,
              "check that it is there and that you may read it");
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::vector<fs::directory_entry> entries;
  try {
    for (const auto& entry : fs::directory_iterator(folder)) {
      throw_if_stopped();
      if (!is_hidden(entry.path())) {
        entries.push_back(entry);
      }
    }
  } catch (const fs::filesystem_error& e) {
    throw_unreadable(folder, e.code().message());
  }
  return entries;
}

bool is_folder(const fs::directory_entry& entry) {
  std::error_code code;
  return entry.is_directory(code);
}

bool is_file(const fs::directory_entry& entry) {
  std::error_code code;
  return entry.is_regular_file(code);
}

// Collects below `folder`, following links; `above` holds the real folders on the way down, so that
// a link back into them ends the walk.
void collect(const fs::path& folder, std::set<std::string> above, Found& found) {
  std::error_code code;
  const auto real = fs::canonical(folder, code);
  if (code) {
    throw_unreadable(folder, code.message());
  }
  if (!above.insert(real.string()).second) {
    found.loops.push_back(folder.string());
    return;
  }
  for (const auto& entry : entries_of(folder)) {
    throw_if_stopped();
    if (is_folder(entry)) {
      collect(entry.path(), above, found);
    } else if (has_image_extension(entry.path()) && is_file(entry)) {
      found.images.push_back(entry.path().string());
    } else {
      ++found.num_others;
      if (found.first_other.empty()) {
        found.first_other = entry.path().string();
      }
    }
  }
}

struct Listing {
  std::vector<std::string> folders;  // names, sorted by bytes
  std::vector<std::string> images;   // image files that lie beside the folders
};

void check_is_folder(const fs::path& dir) {
  std::error_code code;
  if (fs::is_directory(dir, code)) {
    return;
  }
  if (fs::exists(dir, code)) {
    throw Error(ErrorKind::Data, "'" + dir.string() + "' is a file, not a folder",
                "give the folder that holds the images (data.root, or --data FOLDER)");
  }
  if (code) {
    throw_unreadable(dir, code.message());
  }
  throw Error(ErrorKind::Data, "there is no folder '" + dir.string() + "'",
              "check data.root, or set it with --data FOLDER");
}

// "data/train/" and "data/train" give the same paths.
fs::path without_slash(const fs::path& dir) {
  return dir.has_filename() || !dir.has_relative_path() ? dir : dir.parent_path();
}

[[noreturn]] void throw_without_classes(const fs::path& dir, std::size_t num_images) {
  const std::string what =
      num_images == 0
          ? "has no class folders and no images"
          : str("holds ", num_images, " images directly, without class folders for them");
  throw Error(ErrorKind::Data, "'" + dir.string() + "' " + what,
              "sort the images into one sub-folder a class: " +
                  (dir / "<class>" / "image.jpg").string() + " (data/README.md shows the layout)");
}

Listing list(const fs::path& dir) {
  Listing listing;
  for (const auto& entry : entries_of(dir)) {
    if (is_folder(entry)) {
      listing.folders.push_back(entry.path().filename().string());
    } else if (has_image_extension(entry.path())) {
      listing.images.push_back(entry.path().string());
    }
  }
  std::sort(listing.folders.begin(), listing.folders.end());
  std::sort(listing.images.begin(), listing.images.end());
  if (listing.folders.empty()) {
    throw_without_classes(dir, listing.images.size());
  }
  return listing;
}

std::string first_few(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> shown(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())));
  return join(shown, ", ") + (names.size() > kShown ? ", ..." : "");
}

void note_case_twins(const std::vector<std::string>& classes, ImageFolder& folder) {
  std::map<std::string, std::string> seen;
  for (const auto& name : classes) {
    const auto [twin, is_new] = seen.emplace(lower(name), name);
    if (!is_new) {
      folder.notes.push_back(
          "the classes '" + twin->second + "' and '" + name +
          "' differ in upper and lower case alone; on a Mac they would be one folder");
    }
  }
}

// `classes` gives each name its label; it holds every name of `present` that has images.
ImageFolder scan_classes(const fs::path& dir, const Listing& listing,
                         const std::vector<std::string>& classes, bool names_are_given) {
  ImageFolder folder;
  folder.root = dir;
  folder.classes = classes;
  std::map<std::string, std::int64_t> label_of;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    label_of[classes[i]] = static_cast<std::int64_t>(i);
  }
  std::vector<std::string> empty;
  std::int64_t num_others = 0;
  std::string first_other;
  std::vector<Sample> samples;
  std::vector<std::string> unknown;
  std::vector<std::string> loops;
  std::error_code code;
  const std::set<std::string> above = {fs::canonical(dir, code).string()};
  if (code) {
    throw_unreadable(dir, code.message());
  }
  for (const auto& name : listing.folders) {
    Found found;
    collect(dir / name, above, found);
    loops.insert(loops.end(), found.loops.begin(), found.loops.end());
    num_others += found.num_others;
    if (first_other.empty()) {
      first_other = found.first_other;
    }
    if (found.images.empty()) {
      empty.push_back(name);
      continue;
    }
    const auto label = label_of.find(name);
    if (label == label_of.end()) {
      unknown.push_back(name);
      continue;
    }
    std::sort(found.images.begin(), found.images.end());
    for (auto& image : found.images) {
      samples.push_back({std::move(image), label->second});
    }
  }
  if (!unknown.empty()) {
    throw Error(ErrorKind::Data,
                "'" + dir.string() + "' has " + (unknown.size() == 1 ? "a class" : "classes") +
                    " that training does not have: " + first_few(unknown) +
                    did_you_mean(unknown.front(), classes),
                "rename or remove the folder, or add training images of that class");
  }
  if (samples.empty() && !listing.images.empty()) {
    throw_without_classes(dir, listing.images.size());
  }
  if (samples.empty()) {
    throw Error(ErrorKind::Data,
                str("there are no images in the ", listing.folders.size(), " folders of '",
                    dir.string(), "'"),
                "put JPEG, PNG, WebP, BMP, TIFF or PPM files into them");
  }
  // Labels follow the training classes; within a class the paths are sorted already.
  std::stable_sort(samples.begin(), samples.end(),
                   [](const Sample& a, const Sample& b) { return a.label < b.label; });
  folder.samples = std::move(samples);

  if (!empty.empty()) {
    folder.notes.push_back(str(empty.size(), " folders of '", dir.string(), "' hold no image (",
                               first_few(empty),
                               names_are_given ? ")" : "); they count as classes all the same"));
  }
  if (names_are_given) {
    std::vector<std::string> missing;
    for (const auto& name : classes) {
      if (!std::binary_search(listing.folders.begin(), listing.folders.end(), name)) {
        missing.push_back(name);
      }
    }
    if (!missing.empty()) {
      folder.notes.push_back(str(missing.size(), " training classes have no folder in '",
                                 dir.string(), "': ", first_few(missing)));
    }
  } else {
    note_case_twins(classes, folder);
  }
  if (!listing.images.empty()) {
    folder.notes.push_back(str(listing.images.size(), " images lie beside the class folders of '",
                               dir.string(), "' and are left out (", listing.images.front(), ")"));
  }
  if (num_others > 0) {
    folder.notes.push_back(str(num_others, " files in '", dir.string(),
                               "' are no image files by name or kind and are left out (",
                               first_other, ")"));
  }
  if (!loops.empty()) {
    folder.notes.push_back(str(loops.size(), " links lead back to a folder above them and are not ",
                               "followed (", first_few(loops), ")"));
  }
  return folder;
}

void add_bytes(std::uint64_t& hash, const std::string& text) {
  for (const char c : text) {  // FNV-1a
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  hash = (hash ^ 0xffU) * 0x100000001b3U;  // ends the text: no UTF-8 byte is 0xff
}

}  // namespace

std::string ImageFolder::fingerprint() const {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const auto& name : classes) {
    add_bytes(hash, name);
  }
  const std::string prefix = root.string();
  for (const auto& sample : samples) {
    const bool below_root = sample.path.starts_with(prefix);
    add_bytes(hash, below_root ? sample.path.substr(prefix.size()) : sample.path);
    add_bytes(hash, std::to_string(sample.label));
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

bool has_image_extension(const fs::path& path) {
  static const std::set<std::string> kExtensions = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                    ".pgm", ".tif",  ".tiff", ".webp"};
  return kExtensions.contains(lower(path.extension().string()));
}

namespace {

const std::vector<std::string>& val_names() {
  static const std::vector<std::string> kNames = {"val", "valid", "validation"};
  return kNames;
}

// What to do about a root without the split `names.front()`; `folders` are those in it.
std::string split_remedy(const fs::path& root, const std::vector<std::string>& names,
                         const std::vector<std::string>& folders) {
  std::error_code code;
  const auto kaggle = root / "ILSVRC" / "Data" / "CLS-LOC";
  if (fs::is_directory(kaggle / "train", code)) {
    return "set data.root to '" + kaggle.string() + "', the part of ImageNet with the images";
  }
  const std::string own = lower(root.filename().string());
  if (own == "train" || own == "val") {
    return "set data.root to '" + root.parent_path().string() + "', the folder above";
  }
  for (const auto& folder : folders) {
    for (const auto& name : names) {
      const std::string lowered = lower(folder);
      if (lowered == name || lowered == name + "ing" || lowered == name + "s") {
        return "rename '" + (root / folder).string() + "' to '" + name + "'";
      }
    }
    if (names.front() == "val" && lower(folder) == "test") {
      return "if it is to serve for validation, rename '" + (root / folder).string() + "' to 'val'";
    }
  }
  return "make " + (root / names.front() / "<class>" / "image.jpg").string() +
         " (data/README.md shows the layout)";
}

fs::path find_split(const fs::path& given, const std::vector<std::string>& names) {
  const fs::path root = without_slash(given);
  check_is_folder(root);
  std::error_code code;
  for (const auto& name : names) {
    if (fs::is_directory(root / name, code)) {
      return root / name;
    }
  }
  std::vector<std::string> there;
  std::vector<std::string> folders;
  for (const auto& entry : entries_of(root)) {
    there.push_back(entry.path().filename().string());
    if (is_folder(entry)) {
      folders.push_back(there.back());
    }
  }
  std::sort(there.begin(), there.end());
  std::sort(folders.begin(), folders.end());
  throw Error(ErrorKind::Data,
              "'" + root.string() + "' has no folder " + join(names, ", ") + "; it has " +
                  (there.empty() ? "nothing" : first_few(there)),
              split_remedy(root, names, folders));
}

}  // namespace

fs::path find_train(const fs::path& root) {
  return find_split(root, {"train"});
}
fs::path find_val(const fs::path& root) {
  return find_split(root, val_names());
}
bool has_val(const fs::path& root) {
  return std::any_of(val_names().begin(), val_names().end(), [&](const std::string& name) {
    std::error_code code;
    return fs::is_directory(root / name, code);
  });
}

ImageFolder scan(const fs::path& dir) {
  check_is_folder(dir);
  const fs::path plain = without_slash(dir);
  const Listing listing = list(plain);
  return scan_classes(plain, listing, listing.folders, false);
}

ImageFolder scan(const fs::path& dir, const std::vector<std::string>& classes) {
  check_is_folder(dir);
  const fs::path plain = without_slash(dir);
  return scan_classes(plain, list(plain), classes, true);
}

std::vector<std::string> list_images(const std::vector<std::string>& paths) {
  std::vector<std::string> images;
  for (const auto& path : paths) {
    std::error_code code;
    if (fs::is_directory(path, code)) {
      Found found;
      collect(path, {}, found);
      if (found.images.empty()) {
        throw Error(ErrorKind::Data, "there are no images in '" + path + "'",
                    "name a folder that holds JPEG, PNG, WebP, BMP, TIFF or PPM files");
      }
      std::sort(found.images.begin(), found.images.end());
      images.insert(images.end(), found.images.begin(), found.images.end());
    } else if (fs::exists(path, code)) {
      images.push_back(path);
    } else {
      throw Error(ErrorKind::Data, "there is no file or folder '" + path + "'", "check the path");
    }
  }
  return images;
}

}  // namespace orchard::data
