#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/philox.hpp"
#include "data/loader.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::data;

namespace {

// Files of one pixel whose colour is their number, so that a row tells whose image it shows; those
// of `bad` are text. Numbers are below 256.
ImageFolder numbered_files(const TempFolder& folder, int count, const std::set<int>& bad) {
  ImageFolder images;
  images.root = folder.path();
  images.classes = {"even", "odd"};
  for (int i = 0; i < count; ++i) {
    std::string name = std::to_string(i);
    name.insert(0, 3 - name.size(), '0');
    const auto path = folder / (name + ".ppm");
    const auto pixel = static_cast<char>(i);
    write_atomically(path, bad.contains(i) ? std::string("bad")
                                           : std::string("P6 1 1 255\n") + pixel + pixel + pixel);
    images.samples.push_back({.path = path.string(), .label = i % 2});
  }
  return images;
}

// Writes what is shown, whose place it takes and the epoch.
LoaderOptions options_of(std::int64_t workers, std::int64_t batch_size) {
  LoaderOptions options;
  options.batch_size = batch_size;
  options.workers = workers;
  options.prefetch_batches = 4;
  options.seed = 9;
  options.max_bad_fraction = 1;
  options.side_px = 1;
  options.view = [](const Image& image, std::uint64_t sample, std::uint32_t epoch,
                    std::uint8_t* out) {
    out[0] = image.rgb[0];
    out[1] = static_cast<std::uint8_t>(sample);
    out[2] = static_cast<std::uint8_t>(epoch);
  };
  return options;
}

// What happened until the end of the epoch or the first throw, as text.
std::string story(Loader& loader) {
  std::string text;
  try {
    while (const auto batch = loader.next()) {
      text += "[";
      for (std::size_t i = 0; i < batch->labels.size(); ++i) {
        const std::uint8_t* row = batch->pixels.get() + i * 3;
        CHECK(row[0] == batch->samples[i]);
        CHECK(batch->labels[i] == batch->samples[i] % 2);
        text += std::to_string(row[0]) + "/" + std::to_string(row[1]) + " ";
      }
      text += "]" + std::to_string(batch->end_position);
    }
  } catch (const Error& e) {
    text += std::string("! ") + e.what();
  }
  return text;
}

}  // namespace

TEST_CASE(
    "the batch that meets too many bad images does not depend on how far workers read ahead") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 60, {12, 13, 31, 32, 33, 34, 58, 59});
  std::string expected;
  for (const std::int64_t workers : {0, 1, 3, 8}) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      CAPTURE(workers);
      auto options = options_of(workers, 5);
      options.max_bad_fraction = 0.051;  // three
      Loader loader(images, options);
      loader.start(0);
      const std::string told = story(loader);
      expected = expected.empty() ? told : expected;
      CHECK(told == expected);
      CHECK(told.find("]30! 4 of the 60 images") != std::string::npos);
      CHECK(told.find("032.ppm") != std::string::npos);
      CHECK(story(loader).find("! 4 of the 60 images") == 0);  // asked again, it says so again
      CHECK(loader.bad_files().size() == 4);
    }
  }
}

TEST_CASE("too many bad images are told also when they were first met before a restart") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 40, {1, 2, 3, 4, 5, 6});
  for (const std::int64_t workers : {0, 3}) {
    auto options = options_of(workers, 40);
    options.max_bad_fraction = 0.051;
    Loader loader(images, options);
    loader.start(0);
    CHECK(story(loader).find("! 3 of the 40 images") == 0);
    loader.start(0);
    CHECK(story(loader).find("! 3 of the 40 images") == 0);
  }
}

TEST_CASE("of several bad images in a batch, the one that fails it is always the first") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 16, {3, 4, 5, 6, 7, 12});
  for (const std::int64_t workers : {0, 1, 8}) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      auto options = options_of(workers, 8);
      options.bad_image = config::BadImage::Fail;
      options.substitute_bad = repeat % 2 == 0;
      Loader loader(images, options);
      loader.start(0);
      CHECK(story(loader).find("003.ppm") != std::string::npos);
    }
  }
}

TEST_CASE(
    "a replacement is the one of its rule: drawn from (seed, epoch, sample), tried in order") {
  const TempFolder folder;
  const std::set<int> bad = {0, 2, 3, 5, 7, 8, 11, 13, 14, 17};
  const ImageFolder images = numbered_files(folder, 20, bad);
  for (const std::int64_t workers : {0, 1, 3, 8}) {
    auto options = options_of(workers, 6);
    options.shuffle = options.substitute_bad = true;
    Loader loader(images, options);
    for (const std::uint32_t epoch : {0U, 1U, 7U}) {
      const auto order = epoch_order(20, 9, epoch);
      loader.start(epoch);
      std::size_t position = 0;
      while (const auto batch = loader.next()) {
        for (std::int64_t row = 0; row < batch->size(); ++row, ++position) {
          const auto own = order[position];
          auto shown = own;
          Philox draws(9, static_cast<std::uint64_t>(own), epoch, 2);
          while (bad.contains(static_cast<int>(shown))) {
            shown = static_cast<std::int64_t>(draws.below(20));
          }
          const std::uint8_t* pixel = batch->pixels.get() + row * 3;
          CHECK(batch->samples[static_cast<std::size_t>(row)] == shown);
          CHECK(pixel[0] == shown);
          CHECK(pixel[1] == own);
          CHECK(pixel[2] == epoch);
        }
      }
      CHECK(position == 20);
    }
    CHECK(loader.bad_files().size() == bad.size());
  }
}

TEST_CASE("evaluation: a batch of bad images alone is passed over; a folder of them is an error") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 8, {2, 3, 6, 7});
  for (const std::int64_t workers : {0, 3}) {
    Loader loader(images, options_of(workers, 2));
    loader.start(0);
    CHECK(story(loader) == "[0/0 1/1 ]2[4/4 5/5 ]6");
  }
  const TempFolder other;
  const ImageFolder none = numbered_files(other, 4, {0, 1, 2, 3});
  auto options = options_of(2, 2);
  options.substitute_bad = true;
  Loader loader(none, options);
  loader.start(0);
  CHECK(story(loader).find("no readable image") != std::string::npos);
}

TEST_CASE("one bad image of a tiny set is within any share but zero") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 4, {1});
  auto options = options_of(1, 4);
  options.max_bad_fraction = 0.01;
  Loader lenient(images, options);
  lenient.start(0);
  CHECK(story(lenient) == "[0/0 2/2 3/3 ]4");
  options.max_bad_fraction = 0;
  Loader strict(images, options);
  strict.start(0);
  CHECK(story(strict).find("! 1 of the 4 images") == 0);
}

TEST_CASE(
    "memory for batches is asked for on the caller's thread, and its lack reaches the caller") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 12, {});
  for (const std::int64_t workers : {0, 3}) {
    const auto caller = std::this_thread::get_id();
    std::atomic<int> num_elsewhere = 0;
    bool is_full = false;
    auto options = options_of(workers, 2);
    options.allocate = [&](std::size_t num_bytes) -> std::shared_ptr<std::uint8_t> {
      num_elsewhere += std::this_thread::get_id() == caller ? 0 : 1;
      if (is_full) {
        throw std::bad_alloc();
      }
      return {new std::uint8_t[num_bytes], std::default_delete<std::uint8_t[]>()};
    };
    Loader loader(images, options);
    loader.start(0);
    CHECK(loader.next());
    is_full = true;
    CHECK_THROWS_AS(story(loader), std::bad_alloc);
    CHECK(num_elsewhere == 0);
    is_full = false;
    loader.start(0);
    CHECK(story(loader).find("]12") != std::string::npos);
  }
}

TEST_CASE("an exception of a view reaches next, and the loader can be started again") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 12, {});
  for (const std::int64_t workers : {0, 1, 3}) {
    auto options = options_of(workers, 3);
    const auto view = options.view;
    options.view = [view](const Image& image, std::uint64_t sample, std::uint32_t epoch,
                          std::uint8_t* out) {
      if (epoch == 0 && (sample == 4 || sample == 5)) {
        throw Error(ErrorKind::Internal, "sample " + std::to_string(sample), "");
      }
      view(image, sample, epoch, out);
    };
    Loader loader(images, options);
    loader.start(0);
    CHECK(story(loader) == "[0/0 1/1 2/2 ]3! sample 4");
    loader.start(1, 9);
    CHECK(story(loader) == "[9/9 10/10 11/11 ]12");
  }
}

TEST_CASE("after a restart no thread works for the epoch before") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 60, {});
  std::atomic<std::uint32_t> current = 0;
  std::atomic<int> num_late = 0;
  auto options = options_of(4, 4);
  const auto view = options.view;
  options.view = [&, view](const Image& image, std::uint64_t sample, std::uint32_t epoch,
                           std::uint8_t* out) {
    num_late += epoch == current ? 0 : 1;
    view(image, sample, epoch, out);
    num_late += epoch == current ? 0 : 1;
  };
  Loader loader(images, options);
  for (std::uint32_t epoch = 0; epoch < 200; ++epoch) {
    // The epoch can change only while start() holds the workers back.
    if (epoch > 0) {
      loader.start(0, 60);  // the empty end of an epoch
    }
    current = epoch;
    loader.start(epoch);
    const auto batch = loader.next();
    REQUIRE(batch);
    CHECK(batch->pixels.get()[2] == static_cast<std::uint8_t>(epoch));
  }
  CHECK(num_late == 0);
}

TEST_CASE("a loader may be dropped at any moment") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 40, {3});
  for (int i = 0; i < 40; ++i) {
    Loader loader(images, options_of(1 + i % 5, 3));
    if (i % 4 == 0) {
      continue;
    }
    loader.start(0);
    for (int batch = 0; batch < i % 4; ++batch) {
      CHECK(loader.next());
    }
  }
}

TEST_CASE("a position beyond the epoch is an error that says how many images there are") {
  const TempFolder folder;
  const ImageFolder images = numbered_files(folder, 4, {});
  Loader loader(images, options_of(1, 2));
  CHECK_THROWS_WITH_AS(loader.start(0, 5), doctest::Contains("4 images"), Error);
  loader.start(0, 4);
  CHECK_FALSE(loader.next());
}

TEST_CASE("every order of an epoch is equally likely") {
  // A shuffle that never leaves an element in place, say, gives permutations too, but not all of
  // them.
  std::map<std::vector<std::int64_t>, int> counts;
  constexpr int kNumEpochs = 24 * 400;
  for (int epoch = 0; epoch < kNumEpochs; ++epoch) {
    ++counts[epoch_order(4, 9, epoch)];
  }
  CHECK(counts.size() == 24);
  double chi_square = 0;
  for (const auto& [order, count] : counts) {
    chi_square += (count - 400.0) * (count - 400.0) / 400.0;
  }
  CHECK(chi_square < 49.7);  // 23 degrees of freedom: more in one of a thousand cases
}
