#include "artifacts/pth.hpp"

#include <caffe2/serialize/inline_container.h>
#include <torch/types.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "artifacts/pickle.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace orchard::artifacts {
namespace {

using caffe2::serialize::PyTorchStreamReader;
using caffe2::serialize::PyTorchStreamWriter;

// Lines "<crc32 in hex> <record>\n". The zip directory has checksums too, but LibTorch's reader is
// built without the code that looks at them.
constexpr const char* kChecksums = "orchard/crc32";

std::uint32_t crc32_of(const void* data, std::size_t num_bytes) {
  return static_cast<std::uint32_t>(::crc32_z(0, static_cast<const Bytef*>(data), num_bytes));
}

[[noreturn]] void fail_damaged(const std::filesystem::path& path, const std::string& reason) {
  throw Error(
      ErrorKind::Checkpoint, str("cannot read '", path.string(), "': ", reason),
      "the file is damaged or was not written completely; take another one, or copy it again");
}

[[noreturn]] void fail_kind(const std::filesystem::path& path, const std::string& reason) {
  throw Error(
      ErrorKind::Checkpoint, str("cannot read '", path.string(), "': ", reason),
      "give a file written by Orchard, or by torch.save of a plain dict (a state_dict, say)");
}

// The records of one file, each checked against its checksum where the file has them.
class Records {
 public:
  explicit Records(const std::filesystem::path& path)
      : path_(path), reader_(path.string()), file_bytes_(std::filesystem::file_size(path)) {
    if (!reader_.hasRecord(kChecksums)) {
      return;
    }
    checksums_.emplace();
    const auto [data, size] = read(kChecksums);
    std::istringstream lines(std::string(static_cast<const char*>(data.get()), size));
    for (std::string crc, name; lines >> crc >> name;) {
      checksums_->emplace(name, static_cast<std::uint32_t>(std::strtoul(crc.c_str(), nullptr, 16)));
    }
    for (const auto& [name, crc] : *checksums_) {
      if (!reader_.hasRecord(name)) {
        fail_damaged(path_, str("its record '", name, "' is missing"));
      }
    }
  }

  bool has(const std::string& name) { return reader_.hasRecord(name); }

  std::pair<at::DataPtr, std::size_t> get(const std::string& name) {
    if (!reader_.hasRecord(name)) {
      fail_damaged(path_, str("its record '", name, "' is missing"));
    }
    auto record = read(name);
    if (checksums_) {
      const auto found = checksums_->find(name);
      if (found == checksums_->end() ||
          found->second != crc32_of(record.first.get(), record.second)) {
        fail_damaged(path_, str("its record '", name, "' does not match its checksum"));
      }
    }
    return record;
  }

 private:
  std::pair<at::DataPtr, std::size_t> read(const std::string& name) {
    // Asked first, so that a damaged size does not ask for all memory. Records are not compressed.
    if (reader_.getRecordSize(name) > file_bytes_) {
      fail_damaged(path_, str("its record '", name, "' is larger than the file"));
    }
    auto [data, size] = reader_.getRecord(name);
    return {std::move(data), size};
  }

  std::filesystem::path path_;
  PyTorchStreamReader reader_;
  std::uintmax_t file_bytes_;
  std::optional<std::map<std::string, std::uint32_t>> checksums_;
};

c10::IValue read_records(const std::filesystem::path& path, Tensors tensors) {
  Records records(path);
  if (!records.has("data.pkl")) {
    fail_kind(path, "it holds no pickled value");
  }
  if (records.has("constants.pkl")) {
    fail_kind(path, "it is a TorchScript program");
  }
  if (records.has("byteorder")) {
    const auto [data, size] = records.get("byteorder");
    if (std::string_view(static_cast<const char*>(data.get()), size) != "little") {
      fail_kind(path, "it was written on a big-endian machine");
    }
  }
  const auto [data, size] = records.get("data.pkl");
  std::map<std::string, c10::Storage> storages;  // tensors that share a storage go on sharing it
  const StorageReader storage = [&](const std::string& key, c10::ScalarType type,
                                    std::int64_t numel) -> torch::Tensor {
    const auto options = torch::TensorOptions().dtype(type);
    if (tensors == Tensors::Skip) {
      return torch::empty({numel}, options.device(torch::kMeta));
    }
    auto found = storages.find(key);
    if (found == storages.end()) {
      auto [bytes, num_bytes] = records.get("data/" + key);
      found = storages
                  .emplace(key, c10::Storage(c10::Storage::use_byte_size_t(), num_bytes,
                                             std::move(bytes), nullptr, /*resizable=*/false))
                  .first;
    }
    const std::size_t item_bytes = c10::elementSize(type);
    if (found->second.nbytes() % item_bytes != 0 ||
        found->second.nbytes() / item_bytes != static_cast<std::size_t>(numel)) {
      fail_damaged(path, str("its record 'data/", key, "' has another size than it should have"));
    }
    return torch::empty({0}, options).set_(found->second, 0, {numel}, {1});
  };
  try {
    return unpickle({static_cast<const char*>(data.get()), size}, storage);
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& e) {
    fail_kind(path, e.what());
  }
}

}  // namespace

c10::impl::GenericDict new_dict() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}
c10::impl::GenericList new_list() {
  return c10::impl::GenericList(c10::AnyType::get());
}

std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  // "[enforce fail at inline_container.cc:194] . PytorchStreamReader failed ..."
  if (const auto end = text.find("] . ");
      text.starts_with("[enforce fail at") && end != std::string::npos) {
    text.erase(0, end + 4);
  }
  text.erase(std::min(text.find('\n'), text.size()));
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) {
    text.pop_back();
  }
  return text.empty() ? "unknown reason" : text;
}

void require_torch_file(const std::filesystem::path& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  const char* remedy = "give the path of a checkpoint or model file";
  if (!std::filesystem::exists(status)) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot read '", path.string(), "': there is no such file"), remedy);
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot read '", path.string(), "': it is ",
                    std::filesystem::is_directory(status) ? "a folder" : "not a regular file"),
                remedy);
  }
  std::ifstream in(path, std::ios::binary);
  if (!in.is_open()) {
    throw Error(ErrorKind::Checkpoint,
                str("cannot read '", path.string(), "': it may not be opened"),
                "check the rights of the file");
  }
  std::array<char, 4> magic{};
  in.read(magic.data(), magic.size());
  const std::string_view start(magic.data(), static_cast<std::size_t>(in.gcount()));
  if (start.empty()) {
    fail_damaged(path, "it is empty");
  }
  if (start.starts_with("\x80\x02")) {
    fail_kind(path, "it has the old format that torch.save used before version 1.6");
  }
  if (start != std::string_view("PK\x03\x04", 4)) {
    fail_kind(path, "it is not a zip archive as torch.save writes it");
  }
}

bool is_torchscript(const std::filesystem::path& path) {
  try {
    return PyTorchStreamReader(path.string()).hasRecord("constants.pkl");
  } catch (const std::exception&) {
    return false;
  }
}

void write_pth(const std::filesystem::path& path, const c10::IValue& value) {
  const auto fail = [&](const std::exception& e) {
    throw Error(
        ErrorKind::Checkpoint, str("cannot write '", path.string(), "': ", reason_of(e)),
        "free some memory, or report this with the message above; the earlier file is unchanged");
  };
  try {
    const Pickled pickled = pickle(value);
    AtomicFile file(path);
    std::string checksums;
    // The sink never fails: the writer would throw in its destructor and end the process. commit()
    // throws what went wrong instead.
    PyTorchStreamWriter writer([&file](const void* data, std::size_t num_bytes) {
      file.write(data, num_bytes);
      return num_bytes;
    });
    const auto add = [&](const std::string& name, const void* data, std::size_t num_bytes) {
      writer.writeRecord(name, data, num_bytes);
      std::array<char, 16> crc{};
      std::snprintf(crc.data(), crc.size(), "%08x ", crc32_of(data, num_bytes));
      checksums += crc.data() + name + "\n";
    };
    add("data.pkl", pickled.bytes.data(), pickled.bytes.size());
    add("byteorder", "little", 6);
    for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
      const auto& storage = pickled.storages[i].storage();
      add("data/" + std::to_string(i), storage.data(), storage.nbytes());
    }
    writer.writeRecord(kChecksums, checksums.data(), checksums.size());
    writer.writeEndOfFile();
    file.commit();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(e);
  }
}

c10::IValue read_pth(const std::filesystem::path& path, Tensors tensors) {
  require_torch_file(path);
  try {
    return read_records(path, tensors);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail_damaged(path, reason_of(e));
  }
}

}  // namespace orchard::artifacts
