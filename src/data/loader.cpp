#include "data/loader.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/philox.hpp"
#include "base/stop.hpp"
#include "base/text.hpp"

namespace orchard::data {
namespace {

using Clock = std::chrono::steady_clock;

// How often a waiting next() looks whether a signal asks to stop.
constexpr auto kStopInterval = std::chrono::milliseconds(50);

// Philox ops of the loader's own draws (kViewDraws of transforms.hpp is 1).
constexpr std::uint32_t kOrderDraws = 0;
constexpr std::uint32_t kSubstituteDraws = 2;

// Draws of a replacement for a bad training image before giving up.
constexpr int kMaxSubstitutes = 20;

// A bad file met for a row: the sample itself, or a replacement that turned out bad too.
struct BadSample {
  std::int64_t sample = 0;
  std::string reason;
};

// What became of one row of a batch.
struct Row {
  std::int64_t sample = 0;     // whose place this is
  std::int64_t shown = -1;     // the sample whose image it shows; -1: none, it is left out
  std::vector<BadSample> bad;  // in the order met
  std::exception_ptr failure;  // anything that is not a bad image
};

// A batch in the making. Each row is written by one thread, without the lock; its completion is
// counted under the lock, which is what makes it visible to next().
struct Draft {
  std::shared_ptr<std::uint8_t> pixels;
  std::vector<Row> rows;
  std::size_t taken = 0;  // rows that a thread has taken on
  std::size_t done = 0;
  std::uint32_t epoch = 0;
  std::int64_t end_position = 0;
};

std::shared_ptr<std::uint8_t> allocate_plain(std::size_t num_bytes) {
  const auto memory = std::make_shared<std::vector<std::uint8_t>>(num_bytes);
  return {memory, memory->data()};
}

}  // namespace

// The threads and what they share. They take rows, not batches: the first batch is ready sooner,
// and one huge image delays no more than its own row.
class Loader::Pool {
 public:
  Pool(const ImageFolder& folder, LoaderOptions options)
      : folder_(folder), options_(std::move(options)) {
    if (options_.batch_size < 1 || options_.side_px < 1 || options_.workers < 0 ||
        options_.prefetch_batches < 1 || !options_.view) {
      throw Error(ErrorKind::Internal, "the loader was given options that make no sense",
                  "report this as a fault of Orchard, with the configuration");
    }
    if (!options_.allocate) {
      options_.allocate = allocate_plain;
    }
    image_bytes_ =
        static_cast<std::size_t>(options_.side_px) * static_cast<std::size_t>(options_.side_px) * 3;
  }
  ~Pool() { join(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void start(std::int64_t epoch, std::int64_t position) {
    if (position < 0 || position > num_samples()) {
      throw Error(ErrorKind::Data,
                  str("cannot continue at image ", position, " of an epoch: '",
                      folder_.root.string(), "' has ", num_samples(), " images"),
                  "restore the images that the run was started with, or start a new run");
    }
    {
      std::unique_lock lock(mutex_);
      drafts_.clear();  // threads hold on to the drafts they work for
      idle_.wait(lock, [this] { return busy_ == 0; });
    }
    start_threads();
    epoch_ = static_cast<std::uint32_t>(epoch);
    position_ = position;
    order_ = options_.shuffle ? epoch_order(num_samples(), options_.seed, epoch)
                              : std::vector<std::int64_t>();
    top_up();
  }

  std::optional<Batch> next() {
    throw_if_stopped();
    top_up();
    for (;;) {
      const std::shared_ptr<Draft> draft = wait_for_front();
      if (!draft) {
        return std::nullopt;
      }
      settle(*draft);
      {
        const std::lock_guard lock(mutex_);
        drafts_.pop_front();
      }
      top_up();
      Batch batch = finish(*draft);
      if (batch.size() > 0) {  // else every image of it was bad
        return batch;
      }
    }
  }

  std::int64_t num_samples() const { return static_cast<std::int64_t>(folder_.samples.size()); }
  std::int64_t num_batches() const {
    return (num_samples() + options_.batch_size - 1) / options_.batch_size;
  }
  double waited_s() const { return waited_s_; }

  std::vector<BadFile> bad_files() const {
    const std::lock_guard lock(bad_mutex_);
    std::vector<BadFile> files;
    for (const auto& [path, reason] : delivered_bad_) {
      files.push_back({.path = path, .reason = reason});
    }
    return files;
  }

 private:
  // --- the thread that calls start() and next() ---

  // On the first start, so that a loader which is only held costs nothing.
  void start_threads() {
    try {
      while (static_cast<std::int64_t>(threads_.size()) < options_.workers) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::Config,
                  str("cannot start ", options_.workers, " reader threads: ", error.what()),
                  "set data.workers to a smaller number");
    }
  }

  // Lays out the batches to come, as many as may wait. Allocates, so it runs without the lock.
  void top_up() {
    const auto limit = static_cast<std::size_t>(threads_.empty() ? 1 : options_.prefetch_batches);
    while (num_drafts() < limit && position_ < num_samples()) {
      const std::int64_t size = std::min(options_.batch_size, num_samples() - position_);
      auto draft = std::make_shared<Draft>();
      draft->epoch = epoch_;
      draft->pixels = options_.allocate(static_cast<std::size_t>(size) * image_bytes_);
      draft->rows.resize(static_cast<std::size_t>(size));
      for (auto& row : draft->rows) {
        row.sample = order_.empty() ? position_ : order_[static_cast<std::size_t>(position_)];
        ++position_;
      }
      draft->end_position = position_;
      {
        const std::lock_guard lock(mutex_);
        drafts_.push_back(std::move(draft));
      }
      work_.notify_all();
    }
  }

  std::size_t num_drafts() {
    const std::lock_guard lock(mutex_);
    return drafts_.size();
  }

  // The oldest draft, once all its rows are done; null at the end of the epoch.
  std::shared_ptr<Draft> wait_for_front() {
    std::unique_lock lock(mutex_);
    if (drafts_.empty()) {
      return nullptr;
    }
    const std::shared_ptr<Draft> draft = drafts_.front();
    const auto is_done = [&] { return draft->done == draft->rows.size(); };
    if (is_done()) {
      return draft;
    }
    const auto since = Clock::now();
    if (threads_.empty()) {
      lock.unlock();  // there is nobody else
      while (!is_done()) {
        throw_if_stopped();
        fill(*draft, draft->rows[draft->done]);
        ++draft->done;
      }
    } else {
      while (!ready_.wait_for(lock, kStopInterval, is_done)) {
        throw_if_stopped();
      }
    }
    waited_s_ += std::chrono::duration<double>(Clock::now() - since).count();
    return draft;
  }

  // Passes on what went wrong in a finished draft. Only here do bad files begin to count, so which
  // batch throws does not depend on how far the workers have read ahead.
  void settle(const Draft& draft) {
    for (const auto& row : draft.rows) {
      for (const auto& bad : row.bad) {
        settle_bad(bad);
      }
      if (row.failure) {
        std::rethrow_exception(row.failure);
      }
      if (row.shown < 0 && options_.substitute_bad) {
        throw Error(ErrorKind::Data,
                    str("no readable image was found in place of '", path_of(row.sample), "' in ",
                        kMaxSubstitutes, " tries"),
                    str("most images of '", folder_.root.string(), "' are bad; check the folder"));
      }
    }
  }

  void settle_bad(const BadSample& bad) {
    const std::string& path = path_of(bad.sample);
    std::size_t count = 0;
    {
      const std::lock_guard lock(bad_mutex_);
      delivered_bad_.emplace(path, bad.reason);
      count = delivered_bad_.size();
    }
    if (options_.bad_image == config::BadImage::Fail) {
      throw Error(ErrorKind::Data, str("'", path, "' could not be read: ", bad.reason),
                  "repair or remove it, or set data.bad_image to skip");
    }
    const double share = options_.max_bad_fraction;
    const double allowed =
        share > 0 ? std::max(1.0, share * static_cast<double>(num_samples())) : 0.0;
    if (static_cast<double>(count) > allowed) {
      throw Error(ErrorKind::Data,
                  str(count, " of the ", num_samples(), " images in '", folder_.root.string(),
                      "' could not be read, more than data.max_bad_fraction = ", compact(share),
                      " allows; the last was '", path, "': ", bad.reason),
                  "repair or remove them, or raise data.max_bad_fraction");
    }
  }

  // Closes the gaps of rows that are left out.
  Batch finish(const Draft& draft) const {
    Batch batch;
    batch.pixels = draft.pixels;
    batch.side_px = options_.side_px;
    batch.end_position = draft.end_position;
    for (std::size_t i = 0; i < draft.rows.size(); ++i) {
      const Row& row = draft.rows[i];
      if (row.shown < 0) {
        continue;
      }
      if (const std::size_t to = batch.labels.size(); to != i) {
        std::memcpy(draft.pixels.get() + to * image_bytes_, draft.pixels.get() + i * image_bytes_,
                    image_bytes_);
      }
      batch.labels.push_back(folder_.samples[static_cast<std::size_t>(row.shown)].label);
      batch.samples.push_back(row.shown);
    }
    return batch;
  }

  // --- any thread ---

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::shared_ptr<Draft> draft;
      work_.wait(lock, [&] { return stopping_ || (draft = draft_with_work()) != nullptr; });
      if (stopping_) {
        return;
      }
      Row& row = draft->rows[draft->taken++];
      ++busy_;
      lock.unlock();
      fill(*draft, row);
      lock.lock();
      if (++draft->done == draft->rows.size()) {
        ready_.notify_one();
      }
      if (--busy_ == 0) {
        idle_.notify_one();
      }
    }
  }

  // The oldest draft that has a row left to take. With the lock.
  std::shared_ptr<Draft> draft_with_work() const {
    for (const auto& draft : drafts_) {
      if (draft->taken < draft->rows.size()) {
        return draft;
      }
    }
    return nullptr;
  }

  void fill(Draft& draft, Row& row) noexcept {
    const auto index = static_cast<std::size_t>(&row - draft.rows.data());
    std::uint8_t* out = draft.pixels.get() + index * image_bytes_;
    try {
      if (show(row, row.sample, draft.epoch, out) || !options_.substitute_bad ||
          options_.bad_image == config::BadImage::Fail) {
        return;
      }
      Philox draws(options_.seed, static_cast<std::uint64_t>(row.sample), draft.epoch,
                   kSubstituteDraws);
      for (int attempt = 0; attempt < kMaxSubstitutes; ++attempt) {
        const auto other =
            static_cast<std::int64_t>(draws.below(static_cast<std::uint64_t>(num_samples())));
        if (show(row, other, draft.epoch, out)) {
          return;
        }
      }
    } catch (...) {
      row.failure = std::current_exception();
    }
  }

  // Puts the image of `sample` into the place of row.sample, or notes why that cannot be.
  bool show(Row& row, std::int64_t sample, std::uint32_t epoch, std::uint8_t* out) {
    if (const auto reason = known_bad(sample)) {
      row.bad.push_back({.sample = sample, .reason = *reason});
      return false;
    }
    try {
      const Image image = decode_file(path_of(sample), options_.exif);
      options_.view(image, static_cast<std::uint64_t>(row.sample), epoch, out);
    } catch (const BadImageError& error) {
      row.bad.push_back({.sample = sample, .reason = error.what()});
      const std::lock_guard lock(bad_mutex_);
      known_bad_.emplace(sample, error.what());
      return false;
    } catch (const std::bad_alloc&) {
      throw Error(ErrorKind::Data, str("not enough memory for the image '", path_of(sample), "'"),
                  "set data.workers or data.prefetch_batches to a smaller number");
    }
    row.shown = sample;
    return true;
  }

  // A file that was bad once is not read again; the outcome is the same as if it were.
  std::optional<std::string> known_bad(std::int64_t sample) const {
    const std::lock_guard lock(bad_mutex_);
    const auto at = known_bad_.find(sample);
    return at == known_bad_.end() ? std::nullopt : std::optional(at->second);
  }

  const std::string& path_of(std::int64_t sample) const {
    return folder_.samples[static_cast<std::size_t>(sample)].path;
  }

  void join() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (auto& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

  const ImageFolder& folder_;
  LoaderOptions options_;
  std::size_t image_bytes_ = 0;

  // Of the thread that calls start() and next().
  std::vector<std::int64_t> order_;  // empty: the folder's
  std::uint32_t epoch_ = 0;
  std::int64_t position_ = 0;  // of the next draft
  double waited_s_ = 0;

  std::mutex mutex_;
  std::condition_variable work_;   // rows to take, or stopping
  std::condition_variable ready_;  // a draft is done
  std::condition_variable idle_;   // no thread holds a row
  std::deque<std::shared_ptr<Draft>> drafts_;
  std::int64_t busy_ = 0;
  bool stopping_ = false;

  mutable std::mutex bad_mutex_;
  std::unordered_map<std::int64_t, std::string> known_bad_;
  std::map<std::string, std::string> delivered_bad_;  // path -> reason

  std::vector<std::thread> threads_;
};

Loader::Loader(const ImageFolder& folder, LoaderOptions options)
    : pool_(std::make_unique<Pool>(folder, std::move(options))) {}
Loader::~Loader() = default;

void Loader::start(std::int64_t epoch, std::int64_t position) {
  pool_->start(epoch, position);
}
std::optional<Batch> Loader::next() {
  return pool_->next();
}
std::int64_t Loader::num_samples() const {
  return pool_->num_samples();
}
std::int64_t Loader::num_batches() const {
  return pool_->num_batches();
}
double Loader::waited_s() const {
  return pool_->waited_s();
}
std::vector<BadFile> Loader::bad_files() const {
  return pool_->bad_files();
}

std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<std::int64_t>(i);
  }
  Philox draws(seed, 0, static_cast<std::uint32_t>(epoch), kOrderDraws);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[draws.below(i)]);
  }
  return order;
}

}  // namespace orchard::data
