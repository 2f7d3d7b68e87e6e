#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/image_folder.hpp"
#include "support/contains.hpp"
#include "support/data_error.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::data;
namespace fs = std::filesystem;

namespace {

void put(const fs::path& path) {
  fs::create_directories(path.parent_path());
  write_atomically(path, "x");
}

}  // namespace

TEST_CASE("scan: images beside folders without any are told as a flat folder") {
  const TempFolder folder;
  put(folder / "val" / "ILSVRC2012_val_00000001.JPEG");
  put(folder / "val" / "ILSVRC2012_val_00000002.JPEG");
  put(folder / "val" / "devkit" / "readme.txt");
  const auto text = error_of([&] { scan(folder / "val"); });
  CHECK(contains(text, "2 images"));
  CHECK(contains(text, "without class folders"));
  CHECK(contains(text, "sub-folder"));
}

TEST_CASE("scan: a link loop is noted; two links to one folder are both followed") {
  const TempFolder folder;
  put(folder / "t" / "a" / "1.jpg");
  put(folder / "elsewhere" / "2.jpg");
  fs::create_directory_symlink("..", folder / "t" / "a" / "up");
  fs::create_directory_symlink(folder / "elsewhere", folder / "t" / "a" / "x");
  fs::create_directory_symlink(folder / "elsewhere", folder / "t" / "a" / "y");
  const ImageFolder images = scan(folder / "t");
  CHECK(images.samples.size() == 3);
  REQUIRE(images.notes.size() == 1);
  CHECK(contains(images.notes[0], "a/up"));
}

TEST_CASE("scan: a folder that may not be listed is an error that names it") {
  const TempFolder folder;
  put(folder / "t" / "a" / "1.jpg");
  put(folder / "t" / "a" / "deep" / "2.jpg");
  const auto deep = folder / "t/a/deep";
  REQUIRE(::chmod(deep.c_str(), 0) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  const bool is_root = ::geteuid() == 0;  // root may list everything
  if (is_root) {
    REQUIRE(::seteuid(65534) == 0);
  }
  const auto text = error_of([&] { scan(folder / "t"); });
  if (is_root) {
    REQUIRE(::seteuid(0) == 0);
  }
  ::chmod(deep.c_str(), 0755);
  CHECK(contains(text, deep.string()));
  CHECK(contains(text, "Permission denied"));
}

TEST_CASE("the fingerprint does not depend on how the folder is named") {
  const TempFolder folder;
  put(folder / "t" / "a" / "1.jpg");
  const auto plain = scan(folder / "t");
  const auto slashed = scan((folder / "t").string() + "/");
  CHECK(slashed.fingerprint() == plain.fingerprint());
  CHECK(slashed.samples[0].path == plain.samples[0].path);
  const auto before = plain.fingerprint();
  fs::rename(folder / "t/a/1.jpg", folder / "t/a/2.jpg");
  CHECK(scan(folder / "t").fingerprint() != before);
}

TEST_CASE("find_train and find_val: the remedy fits the folder that was given") {
  const TempFolder folder;
  put(folder / "set" / "train" / "a" / "1.jpg");
  CHECK(contains(error_of([&] { find_train(folder / "set" / "train"); }),
                 "data.root to '" + (folder / "set").string() + "'"));
  put(folder / "cased" / "Train" / "a" / "1.jpg");
  CHECK(contains(error_of([&] { find_train(folder / "cased"); }), "Train' to 'train'"));
  put(folder / "kaggle" / "ILSVRC/Data/CLS-LOC/train/n01440764/1.JPEG");
  CHECK(contains(error_of([&] { find_train(folder / "kaggle"); }), "ILSVRC/Data/CLS-LOC'"));
  put(folder / "tested" / "train" / "a" / "1.jpg");
  put(folder / "tested" / "test" / "a" / "1.jpg");
  CHECK(contains(error_of([&] { find_val(folder / "tested"); }), "test' to 'val'"));
  put(folder / "file");
  CHECK(contains(error_of([&] { find_train(folder / "file"); }), "is a file"));
}

TEST_CASE("scan of an evaluation split: a name that differs in case alone is told") {
  const TempFolder folder;
  put(folder / "val" / "Cat" / "1.jpg");
  const auto text = error_of([&] { scan(folder / "val", {"cat", "dog"}); });
  CHECK(contains(text, "Cat"));
  CHECK(contains(text, "did you mean 'cat'?"));
}

TEST_CASE("scan: a dangling link and a pipe are left out with a note") {
  const TempFolder folder;
  put(folder / "t" / "a" / "1.jpg");
  fs::create_symlink("nowhere.jpg", folder / "t" / "a" / "2.jpg");
  REQUIRE(::mkfifo((folder / "t/a/3.jpg").c_str(), 0600) == 0);
  const ImageFolder images = scan(folder / "t");
  CHECK(images.samples.size() == 1);
  REQUIRE(images.notes.size() == 1);
  CHECK(contains(images.notes[0], "2 files"));
  CHECK(contains(images.notes[0], "2.jpg"));
}
