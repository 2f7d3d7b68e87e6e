#include <doctest/doctest.h>

#include "base/philox.hpp"
#include "base/text.hpp"

using namespace orchard;

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  // kat_vectors of the Random123 distribution.
  CHECK(Philox::rounds({0, 0, 0, 0}, {0, 0}) ==
        std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(
      Philox::rounds({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
      std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(
      Philox::rounds({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
      std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("below stays in range and reaches both ends") {
  Philox draws(1, 2, 3, 4);
  bool low = false;
  bool high = false;
  for (int i = 0; i < 1000; ++i) {
    const auto value = draws.below(7);
    REQUIRE(value < 7);
    low |= value == 0;
    high |= value == 6;
  }
  CHECK(low);
  CHECK(high);
}

TEST_CASE("text functions") {
  CHECK(thousands(1281167) == "1,281,167");
  CHECK(thousands(-1000) == "-1,000");
  CHECK(thousands(999) == "999");
  CHECK(bytes_text(1536) == "1.5 KiB");
  CHECK(duration_text(75) == "1m 15s");
  CHECK(compact(0.1) == "0.1");
  CHECK(nearest("bacth_size", {"batch_size", "epochs"}) == "batch_size");
  CHECK(nearest("zzz", {"batch_size", "epochs"}).empty());
}
