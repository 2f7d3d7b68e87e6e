#include "data/loader.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <opencv2/core/utility.hpp>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/philox.hpp"
#include "base/stop.hpp"
#include "base/text.hpp"

namespace orchard::data {
namespace {

// Philox ops of the loader's own draws (kViewDraws of transforms.hpp is 1).
constexpr std::uint32_t kOrderDraws = 0;
constexpr std::uint32_t kSubstituteDraws = 2;
constexpr int kSubstituteTries = 20;

std::shared_ptr<std::uint8_t> plain_memory(std::size_t num_bytes) {
  // A container would set every byte first.
  return {new std::uint8_t[num_bytes],
          std::default_delete<std::uint8_t[]>()};  // NOLINT(modernize-avoid-c-arrays)
}

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Philox draws(seed, 0, static_cast<std::uint32_t>(epoch), kOrderDraws);
  for (std::size_t i = order.size(); i > 1; --i) {  // Fisher and Yates
    std::swap(order[i - 1], order[draws.below(i)]);
  }
  return order;
}

// All of the loader. One mutex guards everything but the pixels of a slot, of which each row is
// written by the one worker that has claimed it.
class Loader::Pool {
 public:
  Pool(const ImageFolder& folder, LoaderOptions options)
      : folder_(folder), options_(std::move(options)) {
    cv::setNumThreads(1);  // the workers are the threads
    if (!options_.allocate) {
      options_.allocate = plain_memory;
    }
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    work_.notify_all();
    for (auto& worker : workers_) {
      worker.join();
    }
  }

  void start(std::int64_t epoch, std::int64_t position) {
    {
      const std::lock_guard lock(mutex_);
      slots_.clear();  // rows under way are finished into slots that nobody reads
      epoch_ = epoch;
      planned_ = position;
      if (options_.shuffle) {
        order_ = std::make_shared<const std::vector<std::int64_t>>(
            epoch_order(num_samples(), options_.seed, epoch));
      } else if (!order_) {
        auto order = std::vector<std::int64_t>(static_cast<std::size_t>(num_samples()));
        std::iota(order.begin(), order.end(), 0);
        order_ = std::make_shared<const std::vector<std::int64_t>>(std::move(order));
      }
      while (static_cast<std::int64_t>(workers_.size()) < options_.workers) {
        workers_.emplace_back([this] { work(); });
      }
    }
    work_.notify_all();
  }

  std::optional<Batch> next() {
    const auto slot = options_.workers > 0 ? wait_for_slot() : read_slot();
    if (!slot) {
      return std::nullopt;
    }
    if (slot->error) {
      std::rethrow_exception(slot->error);
    }
    drop_missing_rows(*slot);
    return std::move(slot->batch);
  }

  std::int64_t num_samples() const { return static_cast<std::int64_t>(folder_.samples.size()); }
  std::int64_t num_batches() const {
    return (num_samples() + options_.batch_size - 1) / options_.batch_size;
  }
  double waited_s() const {
    const std::lock_guard lock(mutex_);
    return waited_s_;
  }

  std::vector<BadFile> bad_files() const {
    const std::lock_guard lock(mutex_);
    std::vector<BadFile> files;
    for (const auto& [sample, reason] : bad_) {
      files.push_back({folder_.samples[static_cast<std::size_t>(sample)].path, reason});
    }
    std::sort(files.begin(), files.end(),
              [](const BadFile& a, const BadFile& b) { return a.path < b.path; });
    return files;
  }

 private:
  // A batch in the making.
  struct Slot {
    Batch batch;
    std::shared_ptr<const std::vector<std::int64_t>> order;
    std::int64_t epoch = 0;
    std::int64_t begin = 0;  // position of the first row in the order
    std::int64_t num_rows = 0;
    std::int64_t num_claimed = 0;
    std::int64_t num_done = 0;
    std::exception_ptr error;  // the first fault of a row
  };
  using Lock = std::unique_lock<std::mutex>;

  // The next slot of the epoch, appended to slots_; nothing when all are planned or enough wait.
  std::shared_ptr<Slot> plan(std::int64_t most_slots) {
    if (planned_ >= num_samples() || static_cast<std::int64_t>(slots_.size()) >= most_slots) {
      return nullptr;
    }
    auto slot = std::make_shared<Slot>();
    slot->order = order_;
    slot->epoch = epoch_;
    slot->begin = planned_;
    slot->num_rows = std::min(options_.batch_size, num_samples() - planned_);
    planned_ += slot->num_rows;
    const auto rows = static_cast<std::size_t>(slot->num_rows);
    slot->batch.side_px = options_.side_px;
    slot->batch.labels.resize(rows);
    slot->batch.samples.resize(rows);
    slot->batch.end_position = planned_;
    slots_.push_back(slot);
    return slot;
  }

  std::size_t row_bytes() const {
    return static_cast<std::size_t>(options_.side_px) * static_cast<std::size_t>(options_.side_px) *
           3;
  }

  void work() {
    Lock lock(mutex_);
    while (!closing_) {
      auto found = std::find_if(slots_.begin(), slots_.end(),
                                [](const auto& s) { return s->num_claimed < s->num_rows; });
      std::shared_ptr<Slot> slot = found != slots_.end() ? *found : plan(options_.prefetch_batches);
      if (!slot) {
        work_.wait(lock);
        continue;
      }
      read_row(*slot, slot->num_claimed++, lock);
      if (++slot->num_done == slot->num_rows) {
        done_.notify_all();
      }
    }
  }

  std::shared_ptr<Slot> wait_for_slot() {
    const auto began = std::chrono::steady_clock::now();
    Lock lock(mutex_);
    const bool at_end = slots_.empty() && planned_ >= num_samples();
    if (at_end) {
      return nullptr;
    }
    while (slots_.empty() || slots_.front()->num_done < slots_.front()->num_rows) {
      done_.wait_for(lock, std::chrono::milliseconds(50));
      throw_if_stopped();
    }
    auto slot = slots_.front();
    slots_.pop_front();
    waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    work_.notify_all();
    return slot;
  }

  // Without workers: the caller reads.
  std::shared_ptr<Slot> read_slot() {
    const auto began = std::chrono::steady_clock::now();
    Lock lock(mutex_);
    const auto slot = plan(1);
    if (slot) {
      for (; slot->num_done < slot->num_rows; ++slot->num_done) {
        throw_if_stopped();
        read_row(*slot, slot->num_done, lock);
      }
      slots_.clear();
      waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }
    return slot;
  }

  // Fills one row; gives the lock back meanwhile.
  void read_row(Slot& slot, std::int64_t row, Lock& lock) {
    if (slot.error) {
      return;
    }
    if (!slot.batch.pixels) {
      slot.batch.pixels = options_.allocate(static_cast<std::size_t>(slot.num_rows) * row_bytes());
    }
    std::uint8_t* out = slot.batch.pixels.get() + static_cast<std::size_t>(row) * row_bytes();
    const auto sample = (*slot.order)[static_cast<std::size_t>(slot.begin + row)];
    std::int64_t shown = -1;
    std::exception_ptr error;
    lock.unlock();
    try {
      shown = show(sample, slot.epoch, out);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !slot.error) {
      slot.error = error;
    }
    const auto at = static_cast<std::size_t>(row);
    slot.batch.samples[at] = shown;
    slot.batch.labels[at] = shown < 0 ? -1 : folder_.samples[static_cast<std::size_t>(shown)].label;
  }

  // Draws the sample, or one in its place, and returns which one it was; -1 when the row stays
  // empty.
  std::int64_t show(std::int64_t sample, std::int64_t epoch, std::uint8_t* out) {
    if (try_show(sample, sample, epoch, out)) {
      return sample;
    }
    if (!options_.substitute_bad) {
      return -1;
    }
    Philox draws(options_.seed, static_cast<std::uint64_t>(sample),
                 static_cast<std::uint32_t>(epoch), kSubstituteDraws);
    for (int i = 0; i < kSubstituteTries; ++i) {
      const auto other =
          static_cast<std::int64_t>(draws.below(static_cast<std::uint64_t>(num_samples())));
      if (try_show(other, sample, epoch, out)) {
        return other;
      }
    }
    throw Error(ErrorKind::Data,
                str("no readable image was found in place of '", path_of(sample), "' in ",
                    kSubstituteTries, " tries"),
                "most images of '" + folder_.root.string() + "' are bad; check the folder");
  }

  const std::string& path_of(std::int64_t sample) const {
    return folder_.samples[static_cast<std::size_t>(sample)].path;
  }

  // The view's draws are keyed on the sample whose place it takes.
  bool try_show(std::int64_t sample, std::int64_t place, std::int64_t epoch, std::uint8_t* out) {
    {
      const std::lock_guard lock(mutex_);
      if (bad_.contains(sample)) {
        return false;
      }
    }
    try {
      const Image image = decode_file(path_of(sample), options_.exif);
      options_.view(image, static_cast<std::uint64_t>(place), static_cast<std::uint32_t>(epoch),
                    out);
      return true;
    } catch (const BadImageError& e) {
      note_bad(sample, e.what());
      return false;
    }
  }

  void note_bad(std::int64_t sample, const std::string& reason) {
    if (options_.bad_image == config::BadImage::Fail) {
      throw Error(ErrorKind::Data, "'" + path_of(sample) + "' could not be read: " + reason,
                  "repair or remove it, or set data.bad_image to skip");
    }
    const std::lock_guard lock(mutex_);
    bad_[sample] = reason;
    const double fraction = options_.max_bad_fraction;
    const double allowed =
        fraction > 0 ? std::max(1.0, fraction * static_cast<double>(num_samples())) : 0;
    if (static_cast<double>(bad_.size()) > allowed) {
      throw Error(ErrorKind::Data,
                  str(bad_.size(), " of the ", num_samples(), " images in '", folder_.root.string(),
                      "' could not be read, more than data.max_bad_fraction allows; the last was '",
                      path_of(sample), "': ", reason),
                  "repair or remove them, or raise data.max_bad_fraction");
    }
  }

  // Evaluation leaves bad images out: the rows behind move up.
  void drop_missing_rows(Slot& slot) {
    auto& batch = slot.batch;
    std::size_t kept = 0;
    for (std::size_t row = 0; row < batch.samples.size(); ++row) {
      if (batch.samples[row] < 0) {
        continue;
      }
      if (kept != row) {
        std::copy_n(batch.pixels.get() + row * row_bytes(), row_bytes(),
                    batch.pixels.get() + kept * row_bytes());
        batch.samples[kept] = batch.samples[row];
        batch.labels[kept] = batch.labels[row];
      }
      ++kept;
    }
    batch.samples.resize(kept);
    batch.labels.resize(kept);
  }

  const ImageFolder& folder_;
  LoaderOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_;  // something to read, or closing
  std::condition_variable done_;  // a slot is full
  std::deque<std::shared_ptr<Slot>> slots_;
  std::shared_ptr<const std::vector<std::int64_t>> order_;
  std::map<std::int64_t, std::string> bad_;  // sample -> reason
  std::int64_t epoch_ = 0;
  std::int64_t planned_ = 0;  // samples of the epoch that have a slot
  double waited_s_ = 0;
  bool closing_ = false;
  std::vector<std::thread> workers_;
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

}  // namespace orchard::data
