#include "base/files.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>

#include "base/error.hpp"
#include "base/text.hpp"
#include "support/child.hpp"
#include "support/contains.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
namespace fs = std::filesystem;

TEST_CASE("an atomic write replaces the whole file and leaves nothing else") {
  const TempFolder folder;
  const fs::path target = folder / "a.txt";
  write_atomically(target, "first, longer");
  write_atomically(target, "second");
  CHECK(read_file(target) == "second");
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.txt"});
}

TEST_CASE("nothing is visible before commit, and a dropped file is gone") {
  const TempFolder folder;
  const fs::path target = folder / "a.txt";
  write_atomically(target, "old");
  {
    AtomicFile file(target);
    file.write("new", 3);
    file.check();
    CHECK(read_file(target) == "old");
    CHECK(read_file(file.temporary()) == "new");
  }
  CHECK(read_file(target) == "old");
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.txt"});
}

TEST_CASE("only regular files are replaced") {
  const TempFolder folder;
  const fs::path fifo = folder / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const fs::path link = folder / "link";
  fs::create_symlink("nowhere", link);
  fs::create_directory(folder / "folder");
  for (const auto& target : {fifo, link, folder / "folder"}) {
    CHECK_THROWS_WITH_AS(
        write_atomically(target, "x"),
        str("cannot replace '", target.string(), "': it is not a regular file").c_str(), Error);
  }
  CHECK(fs::is_fifo(fs::symlink_status(fifo)));
  CHECK(fs::is_symlink(fs::symlink_status(link)));
  CHECK(names_in(folder.path()).size() == 3);
  CHECK_THROWS_AS(write_atomically(folder / "missing" / "a.txt", "x"), Error);
}

TEST_CASE("a full disk is an error that names the file and leaves the old one") {
  const TempFolder folder;
  const fs::path target = folder / "a.bin";
  write_atomically(target, "old");
  CHECK(in_child([&] {
          // A size limit fails a write in the middle as a full disk does.
          ::signal(SIGXFSZ, SIG_IGN);
          const rlimit limit = {100'000, 100'000};
          ::setrlimit(RLIMIT_FSIZE, &limit);
          try {
            write_atomically(target, std::string(1'000'000, 'x'));
          } catch (const Error& e) {
            const std::string cause = e.what();
            return e.kind() == ErrorKind::Checkpoint && cause.find("a.bin") != std::string::npos &&
                           cause.find("File too large") != std::string::npos
                       ? 0
                       : 1;
          }
          return 2;
        }) == 0);
  CHECK(read_file(target) == "old");
  CHECK(names_in(folder.path()) == std::set<std::string>{"a.bin"});
}

TEST_CASE("a second name is independent of the first") {
  const TempFolder folder;
  write_atomically(folder / "last", "one");
  write_atomically(folder / "best", "zero");
  link_atomically(folder / "last", folder / "best");
  link_atomically(folder / "last", folder / "best");  // already the same file
  CHECK(read_file(folder / "best") == "one");
  write_atomically(folder / "last", "two");
  CHECK(read_file(folder / "best") == "one");
  CHECK(names_in(folder.path()) == std::set<std::string>{"last", "best"});
  CHECK_THROWS_AS(link_atomically(folder / "missing", folder / "best"), Error);
  CHECK(read_file(folder / "best") == "one");
  fs::create_directory(folder / "folder");
  CHECK_THROWS_AS(link_atomically(folder / "last", folder / "folder"), Error);
}

TEST_CASE("a leftover with our process number that is a second name is not written through") {
  // What a kill between link and rename leaves, met again by a process with the same number.
  const TempFolder folder;
  write_atomically(folder / "last", "precious");
  fs::path leftover = folder / "best";
  leftover += str(".tmp-", ::getpid());
  fs::create_hard_link(folder / "last", leftover);
  write_atomically(folder / "best", "new");
  CHECK(read_file(folder / "last") == "precious");
  CHECK(read_file(folder / "best") == "new");
}
