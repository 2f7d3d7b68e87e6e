// Batches of images from a folder, read by threads, delivered in order.
//
// What a batch holds is a function of (seed, epoch, position) alone: not of the number of workers,
// nor of which one finishes first. To resume, start() at the position that was reached.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "data/decode.hpp"
#include "data/image_folder.hpp"

namespace orchard::data {

struct Batch {
  std::shared_ptr<std::uint8_t> pixels;  // uint8 NHWC: size() x side_px x side_px x 3
  int side_px = 0;
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> samples;  // index into ImageFolder::samples of what each row shows
  std::int64_t end_position = 0;      // samples of the epoch consumed once this batch is used

  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
};

struct BadFile {
  std::string path;
  std::string reason;
};

struct LoaderOptions {
  std::int64_t batch_size = 1;
  std::int64_t workers = 0;  // threads; 0: next() reads by itself
  std::int64_t prefetch_batches = 4;
  std::uint64_t seed = 0;
  bool shuffle = false;  // an order drawn from (seed, epoch); else the folder's order
  // Training: a bad image is replaced by another one drawn from (seed, epoch, sample), so that a
  // batch is always full. Evaluation: it is left out, so the batch is smaller; a batch that would
  // be empty is passed over.
  bool substitute_bad = false;
  config::BadImage bad_image = config::BadImage::Skip;
  // Under Skip: next() throws once more than this share of the folder's images (but at least one,
  // unless the share is 0) has turned out bad.
  double max_bad_fraction = 0.05;
  int side_px = 224;
  // Draws the view of one decoded image into `out` (side_px * side_px * 3 bytes). Called from
  // workers. `sample` is the row's own also when `image` stands in for a bad one. A BadImageError
  // counts as one of decoding.
  std::function<void(const Image& image, std::uint64_t sample, std::uint32_t epoch,
                     std::uint8_t* out)>
      view;
  config::ExifOrientation exif = config::ExifOrientation::Ignore;
  // Where batches live; the default is plain memory. (Pinned memory comes in here on CUDA.) Called
  // only by the thread that calls start() and next().
  std::function<std::shared_ptr<std::uint8_t>(std::size_t num_bytes)> allocate;
};

// Used by one thread, except where noted.
class Loader {
 public:
  // `folder` must outlive the loader.
  Loader(const ImageFolder& folder, LoaderOptions options);
  ~Loader();  // stops and joins the workers
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Begins (or begins anew) to read epoch `epoch` from sample position `position`, a value of
  // Batch::end_position or 0. May be called at any time: what the workers still do for an earlier
  // start is finished and dropped before this returns. Throws Error(Data) when the epoch is shorter
  // than that, Error(Config) when the threads cannot be had.
  void start(std::int64_t epoch, std::int64_t position = 0);

  // The next batch, or nothing at the end of the epoch. Throws Error(Data) when a bad image is met
  // under BadImage::Fail (naming it) or when too many were skipped; Stopped on a signal. Which
  // batch throws, and what, does not depend on the workers either; asked again, it throws the same.
  // A training epoch ends with a smaller batch when the size does not divide the samples.
  std::optional<Batch> next();

  std::int64_t num_samples() const;
  std::int64_t num_batches() const;  // of a whole epoch
  // Time that next() has spent waiting for workers, or reading without them, since construction, in
  // seconds.
  double waited_s() const;
  // Every bad file met up to the batch delivered last, once each, sorted by path. Thread-safe.
  std::vector<BadFile> bad_files() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

// The order of an epoch: a permutation of 0..count-1 that depends on (seed, epoch) alone. A
// Fisher-Yates shuffle of our own, since std::shuffle differs between standard libraries.
std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch);

}  // namespace orchard::data
