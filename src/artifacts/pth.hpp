// Files that Python's torch.load(weights_only=True) opens: a zip of a pickled plain dict and its
// tensors. Written atomically; each record's CRC-32 is kept inside and checked when we read it
// back.
#pragma once

#include <ATen/core/ivalue.h>

#include <exception>
#include <filesystem>
#include <string>

namespace orchard::artifacts {

c10::impl::GenericDict new_dict();  // str -> any
c10::impl::GenericList new_list();  // of any

// Tensors may be on any device; they are stored as contiguous CPU tensors without gradient history.
// Throws Error(Checkpoint); the old file is then unchanged.
void write_pth(const std::filesystem::path& path, const c10::IValue& value);

// Reads a file of plain dicts, lists, tuples, numbers, texts and tensors (ours, or Python's
// torch.save of such; an OrderedDict becomes a dict). Nothing in the file is ever run. Needs about
// as much memory as the file is long. Throws Error(Checkpoint) when it is missing, damaged or of
// another kind.
enum class Tensors { Read, Skip };  // Skip: tensors have their size and type but no data ("meta")
c10::IValue read_pth(const std::filesystem::path& path, Tensors tensors = Tensors::Read);

// Throws Error(Checkpoint) unless the path is a file of the zip kind that LibTorch writes.
void require_torch_file(const std::filesystem::path& path);

// Whether it is a TorchScript program, by its content; false for what cannot be read.
bool is_torchscript(const std::filesystem::path& path);

// The first line of what an exception of LibTorch says, without its place in LibTorch's sources.
std::string reason_of(const std::exception& error);

}  // namespace orchard::artifacts
