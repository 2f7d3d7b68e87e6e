#include "base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace orchard {
namespace {

std::string remedy_for(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some disk space (or choose another folder) and run again; the earlier file is "
             "unchanged";
    case EACCES:
    case EPERM:
    case EROFS:
      return "make the folder writable, or choose another one";
    case ENOENT:
      return "create the folder first, or choose another one";
    default:
      return "check the disk and the path, and run again; the earlier file is unchanged";
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  struct stat status{};
  if (::lstat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot replace '", target_.string(), "': it is not a regular file"),
                "give the name of a new or regular file");
  }
  temporary_ = target_;
  temporary_ += str(".tmp-", ::getpid());
  descriptor_ = ::open(temporary_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    fail(errno, "create");
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, std::size_t num_bytes) noexcept {
  const auto* next = static_cast<const char*>(data);
  while (num_bytes > 0 && error_number_ == 0) {
    const ssize_t written = ::write(descriptor_, next, num_bytes);
    if (written >= 0) {
      next += written;
      num_bytes -= static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      error_number_ = errno;
    }
  }
}

void AtomicFile::commit() {
  if (error_number_ != 0) {
    fail(error_number_, "write");
  }
  if (::fsync(descriptor_) != 0) {
    fail(errno, "write");
  }
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) {
    fail(errno, "write");
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail(errno, "rename");
  }
  const auto parent = target_.has_parent_path() ? target_.parent_path() : ".";
  const int folder = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // some file systems refuse to fsync a folder; the file itself is safe by now
    ::close(folder);
  }
}

void AtomicFile::fail(int error_number, const char* what) {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
  ::unlink(temporary_.c_str());
  throw Error(ErrorKind::Checkpoint,
              str("cannot ", what, " '", target_.string(), "': ", std::strerror(error_number)),
              remedy_for(error_number));
}

void write_atomically(const std::filesystem::path& target, std::string_view content) {
  AtomicFile file(target);
  file.write(content.data(), content.size());
  file.commit();
}

std::string read_file(const std::filesystem::path& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    throw Error(ErrorKind::Data, str("cannot read '", path.string(), "': it is a folder"),
                "give the path of a file");
  }
  std::ifstream in(path, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.is_open() || in.bad()) {
    throw Error(ErrorKind::Data, str("cannot read '", path.string(), "': ", std::strerror(errno)),
                "check that the file is there and readable");
  }
  return content;
}

}  // namespace orchard
