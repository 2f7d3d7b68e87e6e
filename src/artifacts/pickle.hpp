// Python's pickle, as far as torch.save uses it for plain values: dicts, lists, tuples, numbers,
// texts and tensors. Reading runs nothing: every object of another Python class is refused by its
// name.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace orchard::artifacts {

struct Pickled {
  std::string bytes;
  std::vector<torch::Tensor> storages;  // the bytes refer to these by their index; CPU, contiguous
};

// Texts need not be UTF-8 (names of files may not be): a byte that is not becomes the lone
// surrogate that Python's os.fsdecode gives it, and comes back from unpickle as the byte. Throws
// std::runtime_error for a value that torch.load(weights_only=True) would refuse.
Pickled pickle(const c10::IValue& value);

// Gives the `numel` elements stored under `key` as a 1-D tensor.
using StorageReader =
    std::function<torch::Tensor(const std::string& key, c10::ScalarType type, std::int64_t numel)>;

// `bytes` may be damaged or hostile. Throws std::runtime_error.
c10::IValue unpickle(std::string_view bytes, const StorageReader& storage);

}  // namespace orchard::artifacts
