#include "base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

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

void refuse_special(const std::filesystem::path& target) {
  struct stat status{};
  if (::lstat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot replace '", target.string(), "': it is not a regular file"),
                "give the name of a new or regular file");
  }
}

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  std::filesystem::path name = target;
  name += str(".tmp-", ::getpid());
  return name;
}

void sync_folder_of(const std::filesystem::path& target) {
  const auto parent = target.has_parent_path() ? target.parent_path() : ".";
  const int folder = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // some file systems refuse to fsync a folder; the file itself is safe by now
    ::close(folder);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target)
    : target_(std::move(target)), temporary_(temporary_name(target_)) {
  refuse_special(target_);
  // A leftover of a killed process with our number (usual in containers) may be a second name of a
  // finished file, see link_atomically: it must be removed, never truncated.
  ::unlink(temporary_.c_str());
  descriptor_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
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
    // macOS refuses to write more than INT_MAX bytes at once.
    const ssize_t written = ::write(descriptor_, next, std::min(num_bytes, std::size_t{1} << 30U));
    if (written >= 0) {
      next += written;
      num_bytes -= static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      error_number_ = errno;
    }
  }
}

void AtomicFile::check() {
  if (error_number_ != 0) {
    fail(error_number_, "write");
  }
}

void AtomicFile::commit() {
  check();
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
  sync_folder_of(target_);
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

void link_atomically(const std::filesystem::path& source, const std::filesystem::path& target) {
  refuse_special(target);
  const std::filesystem::path temporary = temporary_name(target);
  ::unlink(temporary.c_str());
  if (::link(source.c_str(), temporary.c_str()) == 0) {
    const int error_number = ::rename(temporary.c_str(), target.c_str()) == 0 ? 0 : errno;
    ::unlink(temporary.c_str());  // rename leaves it when both already are names of one file
    if (error_number != 0) {
      throw Error(ErrorKind::Checkpoint,
                  str("cannot rename '", target.string(), "': ", std::strerror(error_number)),
                  remedy_for(error_number));
    }
    sync_folder_of(target);
    return;
  }
  std::ifstream in(source, std::ios::binary);
  AtomicFile copy(target);
  std::vector<char> buffer(std::size_t{1} << 20U);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    copy.write(buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (!in.is_open() || in.bad()) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot copy '", source.string(), "' to '", target.string(), "'"),
                "check the disk and the path, and run again; the earlier file is unchanged");
  }
  copy.commit();
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
