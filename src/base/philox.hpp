// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A draw is a pure function of its key, so results depend neither on the order
// of work nor on the number of threads, and there is no state to save.
#pragma once

#include <array>
#include <cstdint>

namespace orchard {

__extension__ using Uint128 = unsigned __int128;  // g++ and clang have it on every 64-bit machine

// One stream of draws for (seed, epoch, sample, op). Cheap to make; not shared between threads.
class Philox {
 public:
  Philox(std::uint64_t seed, std::uint64_t sample, std::uint32_t epoch, std::uint32_t op)
      : op_(op),
        key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)},
        counter_{0, static_cast<std::uint32_t>(sample), epoch,
                 op ^ static_cast<std::uint32_t>(sample >> 32U) << 16U} {}

  // The stream of another op, from its start, for the same seed, sample and epoch.
  Philox of_op(std::uint32_t op) const {
    Philox other = *this;
    other.counter_[0] = 0;
    other.counter_[3] ^= op_ ^ op;
    other.op_ = op;
    other.used_ = 4;
    return other;
  }

  std::uint32_t next_u32() {
    if (used_ == 4) {
      block_ = rounds(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[used_++];
  }
  std::uint64_t next_u64() {
    const std::uint64_t high = next_u32();
    return high << 32U | next_u32();
  }
  // Uniform in [0, 1), 53 bits.
  double next_double() { return static_cast<double>(next_u64() >> 11U) * 0x1.0p-53; }
  double uniform(double low, double high) { return low + (high - low) * next_double(); }
  // Uniform in [0, bound), without modulo bias (Lemire's rejection). bound > 0.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t threshold = (0 - bound) % bound;
    for (;;) {
      const Uint128 product = static_cast<Uint128>(next_u64()) * bound;
      if (static_cast<std::uint64_t>(product) >= threshold) {
        return static_cast<std::uint64_t>(product >> 64U);
      }
    }
  }

  // The block function itself, public for the known-answer test.
  static std::array<std::uint32_t, 4> rounds(std::array<std::uint32_t, 4> counter,
                                             std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
      counter = {static_cast<std::uint32_t>(product1 >> 32U) ^ counter[1] ^ key[0],
                 static_cast<std::uint32_t>(product1),
                 static_cast<std::uint32_t>(product0 >> 32U) ^ counter[3] ^ key[1],
                 static_cast<std::uint32_t>(product0)};
      key[0] += 0x9E3779B9U;
      key[1] += 0xBB67AE85U;
    }
    return counter;
  }

 private:
  std::uint32_t op_;
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  unsigned used_ = 4;
};

}  // namespace orchard
