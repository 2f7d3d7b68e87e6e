#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/decode.hpp"
#include "data/image_folder.hpp"
#include "data/loader.hpp"
#include "data/sample_set.hpp"
#include "data/transforms.hpp"
#include "support/contains.hpp"
#include "support/data_error.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::data;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path, const std::string& content = "x") {
  fs::create_directories(path.parent_path());
  write_atomically(path, content);
}

std::string bad_reason(const fs::path& path) {
  try {
    decode_file(path.string(), config::ExifOrientation::Ignore);
  } catch (const BadImageError& e) {
    return e.what();
  }
  return "";
}

// One drawn set for all tests of this file: 6 classes of 6 and 2 images.
const fs::path& drawn_set() {
  static const TempFolder folder;
  static const fs::path root = [] {
    make_sample_set({.root = folder / "set", .train_per_class = 6, .val_per_class = 2, .seed = 3});
    return folder / "set";
  }();
  return root;
}

config::AugmentConfig augment() {
  config::AugmentConfig config;
  config.image_size_px = 32;
  return config;
}

LoaderOptions train_options(std::int64_t workers, std::int64_t batch_size = 5) {
  LoaderOptions options;
  options.batch_size = batch_size;
  options.workers = workers;
  options.prefetch_batches = 3;
  options.seed = 11;
  options.shuffle = true;
  options.substitute_bad = true;
  options.max_bad_fraction = 1;
  options.side_px = 32;
  options.view = [](const Image& image, std::uint64_t sample, std::uint32_t epoch,
                    std::uint8_t* out) {
    train_view(image, augment(), Philox(11, sample, epoch, kViewDraws), out);
  };
  return options;
}

// Everything that a batch says, as text.
std::string content(const Batch& batch) {
  std::string text(reinterpret_cast<const char*>(batch.pixels.get()),
                   static_cast<std::size_t>(batch.size() * batch.side_px * batch.side_px * 3));
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    text += std::to_string(batch.labels[i]) + "," + std::to_string(batch.samples[i]) + ";";
  }
  return text + std::to_string(batch.end_position);
}

std::vector<std::string> epoch_contents(Loader& loader, std::int64_t epoch,
                                        std::int64_t position = 0) {
  std::vector<std::string> contents;
  loader.start(epoch, position);
  while (const auto batch = loader.next()) {
    contents.push_back(content(*batch));
  }
  return contents;
}

}  // namespace

TEST_CASE("scan: byte order, hidden names, nesting, upper-case endings, links and their loops") {
  const TempFolder folder;
  for (const char* name :
       {"10/a.jpg", "2/b.JPG", "1/deep/er/c.Jpeg", "B/d.png", "a b/\xc3\xa9.webp", "2/.hidden.jpg",
        ".git/e.jpg", "2/._b.jpg", "2/notes.txt", "loose.jpg"}) {
    put(folder / "train" / name);
  }
  fs::create_directory_symlink(folder / "train" / "2", folder / "train" / "link");
  fs::create_directory_symlink(folder / "train" / "1", folder / "train" / "1" / "loop");
  fs::create_directory(folder / "train" / "empty");
  const ImageFolder images = scan(find_train(folder.path()));
  CHECK(images.classes == std::vector<std::string>{"1", "10", "2", "B", "a b", "empty", "link"});
  std::vector<std::string> found;
  for (const auto& sample : images.samples) {
    found.push_back(std::to_string(sample.label) + fs::path(sample.path).filename().string());
  }
  CHECK(found == std::vector<std::string>{"0c.Jpeg", "1a.jpg", "2b.JPG", "3d.png", "4\xc3\xa9.webp",
                                          "6b.JPG"});
  REQUIRE(images.notes.size() == 4);
  CHECK(contains(images.notes[0], "empty"));
  CHECK(contains(images.notes[1], "loose.jpg"));
  CHECK(contains(images.notes[2], "notes.txt"));
  CHECK(contains(images.notes[3], "1/loop"));
}

TEST_CASE("scan: faults say what is there and what to do") {
  const TempFolder folder;
  CHECK(contains(error_of([&] { find_train(folder / "none"); }), "there is no folder"));
  put(folder / "training" / "a" / "x.jpg");
  CHECK(contains(error_of([&] { find_train(folder.path()); }), "it has training"));
  put(folder / "flat" / "x.jpg");
  const auto flat = error_of([&] { scan(folder / "flat"); });
  CHECK(contains(flat, "holds 1 images directly"));
  CHECK(contains(flat, "sub-folder"));
  fs::create_directories(folder / "hollow" / "a");
  CHECK(contains(error_of([&] { scan(folder / "hollow"); }), "no images in the 1 folders"));
  for (const char* name : {"val", "valid", "validation"}) {
    const TempFolder other;
    fs::create_directory(other / name);
    CHECK(find_val(other.path()) == other / name);
  }
}

TEST_CASE("scan of an evaluation split goes by the names of training") {
  const TempFolder folder;
  put(folder / "val" / "c" / "1.jpg");
  put(folder / "val" / "a" / "2.jpg");
  const ImageFolder images = scan(folder / "val", {"a", "b", "c"});
  REQUIRE(images.samples.size() == 2);
  CHECK(images.samples[0].label == 0);
  CHECK(images.samples[1].label == 2);
  REQUIRE(images.notes.size() == 1);
  CHECK(contains(images.notes[0], "b"));
  fs::create_directory(folder / "val" / "no_images");
  CHECK(scan(folder / "val", {"a", "b", "c"}).samples.size() == 2);
  put(folder / "val" / "bb" / "3.jpg");
  CHECK(contains(error_of([&] { scan(folder / "val", {"a", "b", "c"}); }), "bb"));
}

TEST_CASE("twins that differ in case are noted, and the fingerprint tells every change") {
  const TempFolder folder;
  put(folder / "t" / "Cat" / "1.jpg");
  put(folder / "t" / "cat" / "1.jpg");
  const ImageFolder images = scan(folder / "t");
  REQUIRE(images.notes.size() == 1);
  CHECK(contains(images.notes[0], "'Cat' and 'cat'"));
  const auto before = images.fingerprint();
  CHECK(scan(folder / "t").fingerprint() == before);
  fs::rename(folder / "t", folder / "moved");
  CHECK(scan(folder / "moved").fingerprint() == before);
  put(folder / "moved" / "cat" / "2.jpg");
  CHECK(scan(folder / "moved").fingerprint() != before);
}

TEST_CASE("list_images: files as named, folders searched") {
  const TempFolder folder;
  put(folder / "odd.dat");
  put(folder / "d" / "b.jpg");
  put(folder / "d" / "a" / "c.png");
  const auto images = list_images({(folder / "odd.dat").string(), (folder / "d").string()});
  CHECK(images == std::vector<std::string>{(folder / "odd.dat").string(),
                                           (folder / "d/a/c.png").string(),
                                           (folder / "d/b.jpg").string()});
  CHECK(contains(error_of([&] { list_images({(folder / "x").string()}); }), "no file or folder"));
}

TEST_CASE("decode: whole files give pixels; cut and foreign ones give a reason") {
  const auto sample = scan(drawn_set() / "train").samples.front().path;
  const std::string whole = read_file(sample);
  const Image image = decode_file(sample, config::ExifOrientation::Ignore);
  CHECK(image.width >= 96);
  CHECK(image.rgb.size() == static_cast<std::size_t>(image.width) * image.height * 3);

  const TempFolder folder;
  // Every length but the whole one is refused, also those that lack the end marker alone.
  for (std::size_t length = 0; length < whole.size(); length += length < 700 ? 13 : 211) {
    put(folder / "cut.jpg", whole.substr(0, length));
    CAPTURE(length);
    CHECK_FALSE(bad_reason(folder / "cut.jpg").empty());
  }
  put(folder / "cut.jpg", whole.substr(0, whole.size() - 1));
  CHECK(bad_reason(folder / "cut.jpg") == "truncated JPEG");
  put(folder / "more.jpg", whole + "trailing bytes");
  CHECK(bad_reason(folder / "more.jpg").empty());
  const std::map<std::string, std::string> reasons = {
      {"", "an empty file"},
      {"hello, this is text", "text, not an image"},
      {"GIF89a\x01", "a GIF, which cannot be read"},
      {std::string("\0\0\0\x1c", 4) + "ftypavif....", "an AVIF, which cannot be read"},
      {std::string("\0\0\0\x1c", 4) + "ftypheic....",
       "a HEIC, which cannot be read; convert it to JPEG"},
      {"PK\x03\x04zip", "a zip file, not an image"},
      {std::string("\x89PNG\r\n\x1a\n", 8), "truncated PNG"},
      {std::string("\x00\x01\x02\x03", 4), "not an image of a known kind"}};
  for (const auto& [bytes, reason] : reasons) {
    put(folder / "foreign.jpg", bytes);
    CHECK(bad_reason(folder / "foreign.jpg") == reason);
  }
  CHECK(contains(bad_reason(folder / "missing.jpg"), "cannot be opened"));
  CHECK_FALSE(bad_reason(folder.path()).empty());
}

TEST_CASE("decode: a size bomb is refused from its header") {
  const TempFolder folder;
  std::string png("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\1\0\0\0\1\0\0\x08\2\0\0\0....",
                  33);  // 65536 x 65536
  put(folder / "bomb.png", png);
  CHECK(bad_reason(folder / "bomb.png") == "too large: 65536x65536 pixels");
  std::string jpeg("\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\3\1\x22\0\2\x11\1\3\x11\1", 21);
  put(folder / "bomb.jpg", jpeg);
  CHECK(bad_reason(folder / "bomb.jpg") == "too large: 65535x65535 pixels");
}

TEST_CASE("epoch_order is a permutation of its own for every seed and epoch") {
  for (const std::int64_t count : {0, 1, 2, 1000}) {
    auto order = epoch_order(count, 7, 3);
    CHECK(order == epoch_order(count, 7, 3));
    if (count == 1000) {
      CHECK(order != epoch_order(count, 7, 4));
      CHECK(order != epoch_order(count, 8, 3));
      // The place of an element is uniform: mean of place * value stays near the independent one.
      double products = 0;
      for (std::size_t i = 0; i < order.size(); ++i) {
        products += static_cast<double>(i) * static_cast<double>(order[i]);
      }
      CHECK(std::abs(products / 1000 - 499.5 * 499.5) < 4 * 83250 / std::sqrt(1000.0));
    }
    std::sort(order.begin(), order.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    CHECK(order == all);
  }
}

TEST_CASE("batches are the same for any number of workers, and from any position") {
  const ImageFolder images = scan(drawn_set() / "train");
  Loader reference(images, train_options(0));
  const auto first = epoch_contents(reference, 0);
  const auto second = epoch_contents(reference, 1);
  REQUIRE(first.size() == 8);  // 36 = 7 * 5 + 1
  CHECK(first != second);
  for (const std::int64_t workers : {1, 3, 8}) {
    CAPTURE(workers);
    Loader loader(images, train_options(workers));
    CHECK(epoch_contents(loader, 0) == first);
    CHECK(epoch_contents(loader, 1) == second);
    for (std::int64_t position = 0; position < 36; position += 5) {
      const auto rest = epoch_contents(loader, 0, position);
      CHECK(std::equal(rest.begin(), rest.end(), first.begin() + position / 5, first.end()));
    }
    loader.start(0);  // and left in the middle
    loader.next();
    loader.start(1);
    loader.next();
  }
}

TEST_CASE("an epoch shows every image once") {
  const ImageFolder images = scan(drawn_set() / "train");
  Loader loader(images, train_options(2, 7));
  loader.start(4);
  std::multiset<std::int64_t> seen;
  while (const auto batch = loader.next()) {
    for (std::size_t i = 0; i < batch->samples.size(); ++i) {
      seen.insert(batch->samples[i]);
      CHECK(batch->labels[i] == images.samples[static_cast<std::size_t>(batch->samples[i])].label);
    }
  }
  CHECK(seen.size() == 36);
  CHECK(std::set<std::int64_t>(seen.begin(), seen.end()).size() == 36);
}

TEST_CASE("bad images: replaced in training, left out in evaluation, refused on demand") {
  const TempFolder folder;
  fs::copy(drawn_set() / "train", folder / "train", fs::copy_options::recursive);
  ImageFolder images = scan(folder / "train");
  const std::set<std::int64_t> bad = {0, 7, 35};
  for (const auto sample : bad) {
    put(images.samples[static_cast<std::size_t>(sample)].path, "no image");
  }

  std::vector<std::string> expected;
  for (const std::int64_t workers : {0, 1, 3}) {
    CAPTURE(workers);
    Loader loader(images, train_options(workers));
    const auto contents = epoch_contents(loader, 2);
    CHECK(contents.size() == 8);
    CHECK(loader.bad_files().size() == 3);
    CHECK(loader.bad_files()[0].reason == "text, not an image");
    expected = workers == 0 ? contents : expected;
    CHECK(contents == expected);
    CHECK(epoch_contents(loader, 2) == expected);  // also when they are known to be bad
  }

  auto options = train_options(2);
  options.shuffle = options.substitute_bad = false;
  Loader eval(images, options);
  eval.start(0);
  std::vector<std::int64_t> seen;
  while (const auto batch = eval.next()) {
    seen.insert(seen.end(), batch->samples.begin(), batch->samples.end());
    for (const auto sample : batch->samples) {
      CHECK_FALSE(bad.contains(sample));
    }
  }
  CHECK(seen.size() == 33);
  CHECK(std::is_sorted(seen.begin(), seen.end()));

  options.bad_image = config::BadImage::Fail;
  Loader strict(images, options);
  CHECK(contains(error_of([&] { epoch_contents(strict, 0); }), images.samples[0].path));

  options.bad_image = config::BadImage::Skip;
  options.max_bad_fraction = 0.05;  // of 36: one
  Loader limited(images, options);
  CHECK(contains(error_of([&] { epoch_contents(limited, 0); }), "data.max_bad_fraction"));
}

TEST_CASE("rows move up with their pixels when a bad one is left out") {
  const TempFolder folder;
  fs::copy(drawn_set() / "val", folder / "val", fs::copy_options::recursive);
  const ImageFolder images = scan(folder / "val");
  auto options = train_options(0, 12);
  options.shuffle = options.substitute_bad = false;
  Loader whole(images, options);
  whole.start(0);
  const auto before = whole.next();
  put(images.samples[3].path, "no image");
  Loader holed(images, options);
  holed.start(0);
  const auto after = holed.next();
  REQUIRE(before->size() == 12);
  REQUIRE(after->size() == 11);
  CHECK(after->end_position == 12);
  constexpr std::size_t kRow = 32 * 32 * 3;
  for (std::size_t row = 0; row < 11; ++row) {
    const std::size_t source = row < 3 ? row : row + 1;
    CHECK(std::equal(after->pixels.get() + row * kRow, after->pixels.get() + (row + 1) * kRow,
                     before->pixels.get() + source * kRow));
    CHECK(after->labels[row] == before->labels[source]);
  }
}

TEST_CASE("crop boxes follow torchvision's law") {
  config::AugmentConfig config;
  double sum_area = 0;
  int num_boxes = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Philox draws(1, i, 0, kViewDraws);
    const Box box = random_crop_box(500, 375, config, draws);
    REQUIRE(box.x >= 0);
    REQUIRE(box.y >= 0);
    REQUIRE(box.width > 0);
    REQUIRE(box.height > 0);
    REQUIRE(box.x + box.width <= 500);
    REQUIRE(box.y + box.height <= 375);
    const double area = box.width * box.height / (500.0 * 375.0);
    const double ratio = static_cast<double>(box.width) / box.height;
    CHECK(area > 0.078);
    CHECK(ratio > 0.74);
    CHECK(ratio < 1.35);
    sum_area += area;
    ++num_boxes;
  }
  // A uniform area from 0.08 to 1 has the mean 0.54; boxes that do not fit are drawn again, which
  // favours small ones: torchvision's own boxes for 500x375 have the mean 0.47 (20,000 draws).
  CHECK(sum_area / num_boxes == doctest::Approx(0.47).epsilon(0.04));
  // A very wide image ends in the centre crop of the widest allowed ratio.
  Philox draws(1, 0, 0, kViewDraws);
  const Box strip = random_crop_box(1000, 10, config, draws);
  CHECK(strip.width == 13);
  CHECK(strip.height == 10);
  CHECK(strip.x == 493);
}

TEST_CASE("the drawn set is the same for the same seed, and its colours do not tell the classes") {
  const TempFolder folder;
  make_sample_set({.root = folder / "again", .train_per_class = 6, .val_per_class = 2, .seed = 3});
  const auto images = scan(drawn_set() / "train");
  const auto again = scan(folder / "again" / "train");
  REQUIRE(images.samples.size() == again.samples.size());
  for (std::size_t i = 0; i < images.samples.size(); ++i) {
    CHECK(read_file(images.samples[i].path) == read_file(again.samples[i].path));
  }
  CHECK(images.classes == sample_set_classes());
  CHECK(contains(error_of([&] { make_sample_set({.root = folder / "again"}); }), "exists already"));
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);

  // The nearest mean colour, fitted on 60 images a class, is near chance (1/6) on 30 others.
  make_sample_set(
      {.root = folder / "large", .train_per_class = 60, .val_per_class = 30, .seed = 4});
  const auto mean_color = [](const std::string& path) {
    const Image image = decode_file(path, config::ExifOrientation::Ignore);
    std::array<double, 3> mean{};
    for (std::size_t i = 0; i < image.rgb.size(); ++i) {
      mean.at(i % 3) += image.rgb[i] / (static_cast<double>(image.rgb.size()) / 3);
    }
    return mean;
  };
  std::array<std::array<double, 3>, 6> centroids{};
  for (const auto& sample : scan(folder / "large" / "train").samples) {
    const auto mean = mean_color(sample.path);
    for (std::size_t c = 0; c < 3; ++c) {
      centroids.at(static_cast<std::size_t>(sample.label)).at(c) += mean.at(c) / 60;
    }
  }
  int num_right = 0;
  for (const auto& sample : scan(folder / "large" / "val").samples) {
    const auto mean = mean_color(sample.path);
    const auto distance = [&](std::size_t label) {
      double sum = 0;
      for (std::size_t c = 0; c < 3; ++c) {
        sum += std::pow(mean.at(c) - centroids.at(label).at(c), 2);
      }
      return sum;
    };
    std::size_t best = 0;
    for (std::size_t label = 1; label < 6; ++label) {
      best = distance(label) < distance(best) ? label : best;
    }
    num_right += static_cast<std::int64_t>(best) == sample.label ? 1 : 0;
  }
  CHECK(num_right < 0.35 * 180);
}
