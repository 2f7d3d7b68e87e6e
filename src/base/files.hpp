// Files that are never half written. A target is replaced by a finished temporary file from the
// same folder (write, fsync, rename, fsync of the folder), or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace orchard {

// One atomic write of one file. Not thread-safe.
class AtomicFile {
 public:
  // Creates `<target>.tmp-<pid>` beside the target. Throws Error(Checkpoint) when the folder cannot
  // be written or when the target exists and is not a regular file (a device or FIFO is never
  // replaced).
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();  // removes the temporary file unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Never throws and always takes all bytes: LibTorch's zip writer aborts the process when its sink
  // fails. The first failure (a full disk, say) is kept for commit().
  void write(const void* data, std::size_t num_bytes) noexcept;

  // Throws what commit() would throw for the writes so far. Afterwards all of them can be read back
  // from temporary(): to check a file before it takes its place.
  void check();
  const std::filesystem::path& temporary() const { return temporary_; }

  // Makes the file durable and visible. Throws Error(Checkpoint), naming the target and the reason,
  // if anything failed since construction; the old file is then still whole and the temporary one
  // gone.
  void commit();

 private:
  [[noreturn]] void fail(int error_number, const char* what);

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  int error_number_ = 0;
};

void write_atomically(const std::filesystem::path& target, std::string_view content);

// Gives the finished file `source` the second name `target`, atomically: by a hard link, or by a
// copy where the file system has none. Both are in one folder and must only ever be replaced, never
// changed in place. Throws Error(Checkpoint).
void link_atomically(const std::filesystem::path& source, const std::filesystem::path& target);

// The whole file. Throws Error(Data) naming the path and the reason.
std::string read_file(const std::filesystem::path& path);

}  // namespace orchard
