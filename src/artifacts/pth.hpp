// Files that Python's torch.load(weights_only=True) opens: a zip of a pickled plain dict and its
// tensors. Written atomically; each record's CRC-32 is kept inside and checked when we read it
// back.
#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>

namespace orchard::artifacts {

c10::impl::GenericDict new_dict();  // str -> any

// Tensors may be on any device; they are stored as contiguous CPU tensors without gradient history.
// Throws Error(Checkpoint); the old file is then unchanged.
void write_pth(const std::filesystem::path& path, const c10::IValue& value);

// Reads a file of plain dicts, lists, tuples, numbers, texts and tensors (ours, or Python's
// torch.save of such). Throws Error(Checkpoint) when it is missing, damaged or of another kind.
c10::IValue read_pth(const std::filesystem::path& path);

}  // namespace orchard::artifacts
