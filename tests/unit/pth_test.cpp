#include "artifacts/pth.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <bit>
#include <csignal>
#include <fstream>
#include <limits>

#include "artifacts/pickle.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/philox.hpp"
#include "base/text.hpp"
#include "support/child.hpp"
#include "support/contains.hpp"
#include "support/same_bits.hpp"
#include "support/temp_folder.hpp"

using namespace orchard;
using namespace orchard::artifacts;
namespace fs = std::filesystem;

namespace {

// Whether two trees are equal to the last bit.
bool same(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor()) {
    return b.isTensor() && same_bits(a.toTensor(), b.toTensor());
  }
  if (a.isDouble()) {
    return b.isDouble() &&
           std::bit_cast<std::uint64_t>(a.toDouble()) == std::bit_cast<std::uint64_t>(b.toDouble());
  }
  if (a.isGenericDict()) {
    if (!b.isGenericDict() || a.toGenericDict().size() != b.toGenericDict().size()) {
      return false;
    }
    for (const auto& entry : a.toGenericDict()) {
      if (!b.toGenericDict().contains(entry.key()) ||
          !same(entry.value(), b.toGenericDict().at(entry.key()))) {
        return false;
      }
    }
    return true;
  }
  if (a.isList() || a.isTuple()) {
    const auto elements = [](const c10::IValue& v) {
      return v.isList() ? v.toListRef().vec() : v.toTupleRef().elements().vec();
    };
    if (a.isList() != b.isList() || elements(a).size() != elements(b).size()) {
      return false;
    }
    for (std::size_t i = 0; i < elements(a).size(); ++i) {
      if (!same(elements(a)[i], elements(b)[i])) {
        return false;
      }
    }
    return true;
  }
  return a.tagKind() == b.tagKind() && (a.isNone() || a == b);
}

c10::impl::GenericDict all_kinds() {
  torch::manual_seed(5);
  auto dict = new_dict();
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16,
                          torch::kLong, torch::kInt, torch::kShort, torch::kChar, torch::kByte,
                          torch::kBool, torch::kComplexFloat, torch::kComplexDouble}) {
    dict.insert(std::string("tensor ") + c10::toString(type), (torch::randn({3, 5}) * 40).to(type));
  }
  dict.insert("nan", torch::tensor({std::nanf("7"), -0.0F, 1e-45F, HUGE_VALF}));
  dict.insert("scalar", torch::tensor(5));
  dict.insert("empty", torch::empty({0, 3}));
  dict.insert("slice", torch::arange(1000).slice(0, 7, 11));
  dict.insert("transposed", torch::randn({3, 4}).t());
  dict.insert("channels last", torch::randn({2, 3, 4, 4}).to(torch::MemoryFormat::ChannelsLast));
  dict.insert("parameter", torch::randn({2}).set_requires_grad(true));
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{255}, std::int64_t{256}, std::int64_t{65536},
        std::int64_t{-1}, std::int64_t{1} << 31, -(std::int64_t{1} << 31),
        (std::int64_t{1} << 40) + 7, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    dict.insert(str("int ", value), value);
  }
  dict.insert("double", 0.1);
  dict.insert("negative zero", -0.0);
  dict.insert("infinity", -std::numeric_limits<double>::infinity());
  dict.insert("not a number", std::numeric_limits<double>::quiet_NaN());
  dict.insert("smallest", std::numeric_limits<double>::denorm_min());
  dict.insert("true", true);
  dict.insert("none", c10::IValue());
  dict.insert("Ünïcode 猫", "dög\n\t\"🌳\"");
  dict.insert("not UTF-8", std::string("caf\xE9 \xED\xB3\xA9 \xFF\x80 \xE2\x82"));
  dict.insert("zero byte", std::string("a\0b", 3));
  auto list = new_list();
  list.push_back(std::int64_t{1});
  list.push_back(2.5);
  list.push_back(c10::ivalue::Tuple::create(std::vector<c10::IValue>{"x", new_dict(), new_list()}));
  dict.insert("list", list);
  return dict;
}

void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// The cause of the Error(Checkpoint) of reading `path`, "" when it can be read. Anything else
// escapes.
std::string refusal(const fs::path& path) {
  try {
    read_pth(path);
    return "";
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::Checkpoint);
    CHECK(!e.remedy().empty());
    return e.what();
  }
}

c10::IValue unpickle_alone(const std::string& bytes) {
  return unpickle(bytes, [](const std::string&, c10::ScalarType type, std::int64_t numel) {
    return torch::zeros({numel}, type);
  });
}

}  // namespace

TEST_CASE("every kind of value comes back to the last bit") {
  const TempFolder folder;
  const auto dict = all_kinds();
  write_pth(folder / "a.pth", dict);
  const auto back = read_pth(folder / "a.pth");
  CHECK(same(dict, back));
  for (const auto& entry : dict) {
    CAPTURE(entry.key().toStringRef());
    CHECK(same(entry.value(), back.toGenericDict().at(entry.key())));
  }
  const auto parameter = back.toGenericDict().at("parameter").toTensor();
  CHECK(!parameter.requires_grad());
  CHECK(
      same_bits(torch::arange(1000).slice(0, 7, 11), back.toGenericDict().at("slice").toTensor()));
  // Memory that came from a file can be trained on.
  const auto weights = back.toGenericDict().at("tensor Float").toTensor().requires_grad_();
  weights.sum().backward();
  CHECK(weights.grad().defined());
}

TEST_CASE("a part of a large tensor is stored without the rest, typed lists as plain lists") {
  const TempFolder folder;
  auto dict = new_dict();
  dict.insert("slice", torch::zeros({1'000'000}).slice(0, 3, 5));
  dict.insert("typed", c10::List<std::int64_t>({1, 2, 3}));
  write_pth(folder / "a.pth", dict);
  CHECK(fs::file_size(folder / "a.pth") < 10'000);
  const c10::IValue list = read_pth(folder / "a.pth").toGenericDict().at("typed");
  const auto typed = list.toListRef();
  REQUIRE(typed.size() == 3);
  CHECK(typed[2].toInt() == 3);
}

TEST_CASE("tensors that share memory go on sharing it") {
  const TempFolder folder;
  const auto tied = torch::randn({100'000});
  auto dict = new_dict();
  dict.insert("a", tied);
  dict.insert("b", tied.view({100, 1000}));
  write_pth(folder / "a.pth", dict);
  CHECK(fs::file_size(folder / "a.pth") < 450'000);
  const auto back = read_pth(folder / "a.pth").toGenericDict();
  CHECK(back.at("a").toTensor().data_ptr() == back.at("b").toTensor().data_ptr());
}

TEST_CASE("without tensors the values are the same and nothing is read") {
  const TempFolder folder;
  auto dict = new_dict();
  dict.insert("step", 7);
  dict.insert("weight", torch::ones({3, 4}, torch::kHalf));
  write_pth(folder / "a.pth", dict);
  const auto back = read_pth(folder / "a.pth", Tensors::Skip).toGenericDict();
  CHECK(back.at("step").toInt() == 7);
  CHECK(back.at("weight").toTensor().is_meta());
  CHECK(back.at("weight").toTensor().sizes() == torch::IntArrayRef({3, 4}));
}

TEST_CASE("what weights_only would refuse is not written, and no file is left") {
  const TempFolder folder;
  for (const c10::IValue& value :
       {c10::IValue(torch::ones({2}).to(torch::kFloat8_e4m3fn)),
        c10::IValue(torch::eye(3).to_sparse()), c10::IValue(torch::Tensor()),
        c10::IValue(torch::Device("cpu"))}) {
    auto dict = new_dict();
    dict.insert("a", value);
    CHECK_THROWS_AS(write_pth(folder / "a.pth", dict), Error);
  }
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("files of other kinds are told apart") {
  const TempFolder folder;
  CHECK(contains(refusal(folder / "none.pth"), "there is no such file"));
  CHECK(contains(refusal(folder.path()), "it is a folder"));
  put(folder / "empty.pth", "");
  CHECK(contains(refusal(folder / "empty.pth"), "it is empty"));
  put(folder / "text.pth", "hello");
  CHECK(contains(refusal(folder / "text.pth"), "not a zip archive"));
  put(folder / "legacy.pth", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.");
  CHECK(contains(refusal(folder / "legacy.pth"), "before version 1.6"));
  put(folder / "zip.pth", std::string("PK\x03\x04 and nothing", 16));
  CHECK(contains(refusal(folder / "zip.pth"), "zip.pth"));
}

TEST_CASE("a truncated file is refused at every length") {
  const TempFolder folder;
  auto dict = new_dict();
  dict.insert("weight", torch::arange(40, torch::kFloat));
  dict.insert("step", 3);
  write_pth(folder / "a.pth", dict);
  const std::string bytes = read_file(folder / "a.pth");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    put(folder / "cut.pth", bytes.substr(0, length));
    if (refusal(folder / "cut.pth").empty()) {
      FAIL("read at length " << length << " of " << bytes.size());
    }
  }
}

TEST_CASE("a flipped bit is refused or changes nothing") {
  const TempFolder folder;
  auto dict = new_dict();
  dict.insert("weight", torch::arange(40, torch::kFloat));
  dict.insert("name", "a name");
  dict.insert("step", 3);
  write_pth(folder / "a.pth", dict);
  const std::string bytes = read_file(folder / "a.pth");
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const unsigned bit : {0U, 3U, 7U}) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(static_cast<unsigned char>(flipped[at]) ^ 1U << bit);
      put(folder / "flip.pth", flipped);
      try {
        const auto back = read_pth(folder / "flip.pth");
        if (!same(dict, back)) {
          FAIL("wrong data from a flip at " << at);
        }
      } catch (const Error& e) {
        ++refused;
        if (!contains(e.what(), "flip.pth")) {
          FAIL("the file is not named: " << e.what());
        }
      }
    }
  }
  // Padding between the records and unused fields of the zip make up the rest.
  MESSAGE(refused, " of ", 3 * bytes.size(), " flips refused");
  CHECK(refused > 1000);

  // In the data of a tensor, the record is named.
  auto large = new_dict();
  large.insert("weight", torch::full({10'000}, 1.5F));
  write_pth(folder / "b.pth", large);
  std::string flipped = read_file(folder / "b.pth");
  flipped[flipped.size() / 2] ^= 1;
  put(folder / "b.pth", flipped);
  CHECK(contains(refusal(folder / "b.pth"), "'data/0' does not match its checksum"));
}

TEST_CASE("hostile pickles are refused") {
  const std::string start = "\x80\x02";
  CHECK(unpickle_alone(start + "K\x05.").toInt() == 5);
  for (const std::string& bytes : std::vector<std::string>{
           "", start, start + "K", start + ".", start + "K\x05K\x06.",
           start + "cos\nsystem\nX\x02" + std::string(3, '\0') + "ls\x85R.",  // would run a program
           start + "cos\nsystem\n.",                                          // a bare function
           start + "h\x07.", start + "t.", start + "(K\x05",
           start + "]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a.",  // holds itself
           start + "]q" + std::string(1, '\0') + "]h" + std::string(1, '\0') + "aa.K",
           start + "}" + "K\x01" + "K\x02" + "(u.", start + "X\xff\xff\xff\x7f" + "a.",
           start + "\x8a\x09" + std::string(9, '\x7f') + ".", start + "K\x05Q.", start + "K\x05)R.",
           start + "]" + "}" + "K\x01" + "s."}) {
    CAPTURE(bytes);
    CHECK_THROWS_AS(unpickle_alone(bytes), std::runtime_error);
  }
  std::string deep = start + ")";
  for (int i = 0; i < 100'000; ++i) {
    deep += '\x85';
  }
  CHECK_THROWS_WITH_AS(unpickle_alone(deep + "."), "its values are nested too deeply",
                       std::runtime_error);

  // Sizes, strides and offsets that reach beyond the data.
  const auto tensor = [&](std::int64_t numel, std::int64_t offset, std::int64_t size,
                          std::int64_t stride) {
    const auto integer = [](std::int64_t value) {
      std::string text = "\x8a\x08";
      for (int i = 0; i < 8; ++i) {
        text += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFFU);
      }
      return text;
    };
    const std::string four(3, '\0');
    return start + "ctorch._utils\n_rebuild_tensor_v2\n((X\x07" + four +
           "storagectorch\nFloatStorage\nX\x01" + four + "0X\x03" + four + "cpu" + integer(numel) +
           "tQ" + integer(offset) + integer(size) + "\x85" + integer(stride) + "\x85\x89N" + "tR.";
  };
  const auto largest = std::numeric_limits<std::int64_t>::max();
  CHECK(unpickle_alone(tensor(10, 2, 4, 2)).toTensor().numel() == 4);
  CHECK(unpickle_alone(tensor(10, 0, 0, 1)).toTensor().numel() == 0);
  for (const auto& [offset, size, stride] :
       std::vector<std::array<std::int64_t, 3>>{{2, 5, 2},
                                                {0, 11, 1},
                                                {10, 1, 1},
                                                {-1, 1, 1},
                                                {0, -1, 1},
                                                {0, 1, -1},
                                                {largest, 1, 1},
                                                {0, largest, largest},
                                                {0, 3, largest}}) {
    CAPTURE(offset);
    CAPTURE(size);
    CAPTURE(stride);
    CHECK_THROWS_AS(unpickle_alone(tensor(10, offset, size, stride)), std::runtime_error);
  }
}

TEST_CASE("random damage to a pickle ends in a value or an exception") {
  auto pickled = pickle(all_kinds());
  Philox draws(11, 0, 0, 0);
  int read = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = pickled.bytes;
    for (std::uint64_t n = 1 + draws.below(4); n > 0; --n) {
      bytes[draws.below(bytes.size())] = static_cast<char>(draws.below(256));
    }
    try {
      unpickle(bytes, [](const std::string&, c10::ScalarType type, std::int64_t numel) {
        if (numel > 1000) {
          throw std::runtime_error("larger than the file");
        }
        return torch::zeros({numel}, type);
      });
      ++read;
    } catch (const std::exception&) {
    }
  }
  CHECK(read > 0);
  CHECK(read < 20'000);
}

TEST_CASE("a full disk leaves the old file and does not end the process") {
  const TempFolder folder;
  auto old = new_dict();
  old.insert("step", 1);
  write_pth(folder / "a.pth", old);
  auto large = new_dict();
  large.insert("weight", torch::ones({100'000}));
  for (const rlim_t limit_bytes :
       {rlim_t{1}, rlim_t{100}, rlim_t{5'000}, rlim_t{200'000}, rlim_t{399'000}}) {
    CAPTURE(limit_bytes);
    CHECK(in_child([&] {
            ::signal(SIGXFSZ, SIG_IGN);
            const rlimit limit = {limit_bytes, limit_bytes};
            ::setrlimit(RLIMIT_FSIZE, &limit);
            try {
              write_pth(folder / "a.pth", large);
            } catch (const Error& e) {
              return contains(e.what(), "a.pth") && contains(e.what(), "File too large") ? 0 : 1;
            }
            return 2;
          }) == 0);
    CHECK(read_pth(folder / "a.pth").toGenericDict().at("step").toInt() == 1);
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  }
}
