#include "artifacts/pickle.hpp"

#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/text.hpp"

namespace orchard::artifacts {
namespace {

// The types that weights_only unpicklers of all supported versions know.
constexpr std::array kStorages = {
    std::pair{c10::ScalarType::Float, "torch.FloatStorage"},
    std::pair{c10::ScalarType::Double, "torch.DoubleStorage"},
    std::pair{c10::ScalarType::Half, "torch.HalfStorage"},
    std::pair{c10::ScalarType::BFloat16, "torch.BFloat16Storage"},
    std::pair{c10::ScalarType::Long, "torch.LongStorage"},
    std::pair{c10::ScalarType::Int, "torch.IntStorage"},
    std::pair{c10::ScalarType::Short, "torch.ShortStorage"},
    std::pair{c10::ScalarType::Char, "torch.CharStorage"},
    std::pair{c10::ScalarType::Byte, "torch.ByteStorage"},
    std::pair{c10::ScalarType::Bool, "torch.BoolStorage"},
    std::pair{c10::ScalarType::ComplexFloat, "torch.ComplexFloatStorage"},
    std::pair{c10::ScalarType::ComplexDouble, "torch.ComplexDoubleStorage"}};

// --- texts ---

// Length of the UTF-8 character at the start of `text`, 0 when there is none (RFC 3629: shortest
// form, no surrogates, up to U+10FFFF).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80                     ? 1
                             : first >= 0xC2 && first <= 0xDF ? 2
                             : first >= 0xE0 && first <= 0xEF ? 3
                             : first >= 0xF0 && first <= 0xF4 ? 4
                                                              : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) {
      return 0;
    }
  }
  const bool wrong = length > 1 && ((first == 0xE0 && byte(1) < 0xA0) ||   // longer than needed
                                    (first == 0xED && byte(1) >= 0xA0) ||  // surrogate
                                    (first == 0xF0 && byte(1) < 0x90) ||   // longer than needed
                                    (first == 0xF4 && byte(1) >= 0x90));   // above U+10FFFF
  return wrong ? 0 : length;
}

// U+DC80 + (byte - 0x80), in the three bytes that Python's "surrogatepass" reads.
std::string text_to_python(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t length = utf8_length(text.substr(at)); length > 0) {
      result.append(text.substr(at, length));
      at += length;
    } else {
      const auto byte = static_cast<unsigned char>(text[at++]);
      result += '\xED';
      result += static_cast<char>(0xB0U | (byte >> 6U));
      result += static_cast<char>(0x80U | (byte & 0x3FU));
    }
  }
  return result;
}

std::string text_from_python(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (at + 2 < text.size() && text[at] == '\xED' &&
        (text[at + 1] == '\xB2' || text[at + 1] == '\xB3')) {
      const auto high = static_cast<unsigned char>(text[at + 1]);
      const auto low = static_cast<unsigned char>(text[at + 2]);
      result += static_cast<char>(((high & 0x0FU) << 6U) | (low & 0x3FU));
      at += 3;
    } else {
      result += text[at++];
    }
  }
  return result;
}

// --- writing ---

torch::Tensor storable(const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided) {
    throw std::runtime_error("an undefined or sparse tensor cannot be stored");
  }
  bool known = false;
  for (const auto& [type, name] : kStorages) {
    known |= type == tensor.scalar_type();
  }
  if (!known) {
    throw std::runtime_error(
        str("a tensor of type ", c10::toString(tensor.scalar_type()), " cannot be stored"));
  }
  auto result = tensor.detach().to(torch::kCPU).resolve_conj().resolve_neg().contiguous();
  // The whole storage is written, so a view of a part gets a storage of its own.
  return result.storage_offset() != 0 || result.storage().nbytes() != result.nbytes()
             ? result.clone()
             : result;
}

// The same tree with lists and dicts of any type (typed lists become calls that weights_only
// refuses).
c10::IValue storable(const c10::IValue& value) {
  if (value.isNone() || value.isBool() || value.isInt() || value.isDouble()) {
    return value;
  }
  if (value.isString()) {
    return text_to_python(value.toStringRef());
  }
  if (value.isTensor()) {
    return storable(value.toTensor());
  }
  if (value.isGenericDict()) {
    c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
    for (const auto& entry : value.toGenericDict()) {
      if (!entry.key().isString() && !entry.key().isInt()) {
        throw std::runtime_error(
            str("a dict key of kind ", entry.key().tagKind(), " cannot be stored"));
      }
      dict.insert(storable(entry.key()), storable(entry.value()));
    }
    return dict;
  }
  if (value.isList()) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const auto& element : value.toListRef()) {
      list.push_back(storable(element));
    }
    return list;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(storable(element));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  throw std::runtime_error(str("a value of kind ", value.tagKind(), " cannot be stored"));
}

// --- reading ---

// A Python class or function on the stack, known by its name alone.
struct Global : torch::CustomClassHolder {
  explicit Global(std::string text) : name(std::move(text)) {}
  std::string name;
};

constexpr int kMaxDepth = 100;  // freeing and walking a value recurse

class Machine {
 public:
  Machine(std::string_view bytes, const StorageReader& storage)
      : bytes_(bytes), storage_(storage) {}

  c10::IValue run() {
    for (;;) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') {
        if (stack_.size() != 1 || stack_[0].isCapsule()) {
          throw std::runtime_error("the pickle does not end in one value");
        }
        return stack_[0];
      }
      step(code);
    }
  }

 private:
  struct Container {
    int depth = 1;
    bool inside = false;  // part of another one: complete, so that no cycle can be made
  };

  void step(unsigned char code) {
    switch (code) {
      case 0x80:  // PROTO
        if (const auto version = number<std::uint8_t>(); version > 3) {
          throw std::runtime_error(str("pickle protocol ", int{version}, " is not read"));
        }
        return;
      case 'N':
        return push({});
      case 0x88:
        return push(true);
      case 0x89:
        return push(false);
      case 'K':
        return push(std::int64_t{number<std::uint8_t>()});
      case 'M':
        return push(std::int64_t{number<std::uint16_t>()});
      case 'J':
        return push(std::int64_t{number<std::int32_t>()});
      case 0x8A:  // LONG1
        return push(long_integer(number<std::uint8_t>()));
      case 'G': {  // big-endian double
        std::uint64_t bits = 0;
        for (const char byte : take(8)) {
          bits = bits << 8U | static_cast<unsigned char>(byte);
        }
        return push(std::bit_cast<double>(bits));
      }
      case 'X':
        return push(text_from_python(take(number<std::uint32_t>())));
      case 'c': {
        std::string module(line());
        return push(c10::IValue::make_capsule(
            c10::make_intrusive<Global>(std::move(module) + "." + std::string(line()))));
      }
      case '}':
        return push_container(c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get()));
      case ']':
        return push_container(c10::impl::GenericList(c10::AnyType::get()));
      case '(':
        marks_.push_back(stack_.size());
        return;
      case ')':
        return push_tuple({});
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(pop(code - 0x84U));
      case 't':
        return push_tuple(pop_to_mark());
      case 'a':
        return append(pop(1));
      case 'e':
        return append(pop_to_mark());
      case 's':
        return set_items(pop(2));
      case 'u':
        return set_items(pop_to_mark());
      case 'q':
        return remember(number<std::uint8_t>());
      case 'r':
        return remember(number<std::uint32_t>());
      case 'h':
        return recall(number<std::uint8_t>());
      case 'j':
        return recall(number<std::uint32_t>());
      case 'Q':
        return load_storage();
      case 'R':
        return reduce();
      case 0x81:  // NEWOBJ
        refuse(global_name(pop(2)[0]));
      case 'b':  // attributes of an object: a state_dict's _metadata, of no use here
        pop(1);
        if (!top().isGenericDict()) {
          throw std::runtime_error("an object with a state of its own is not read");
        }
        return;
      default:
        throw std::runtime_error(str("pickle operation ", int{code}, " is not read"));
    }
  }

  // --- bytes ---
  std::string_view take(std::size_t num_bytes) {
    if (num_bytes > bytes_.size() - at_) {
      throw std::runtime_error("the pickle ends too early");
    }
    at_ += num_bytes;
    return bytes_.substr(at_ - num_bytes, num_bytes);
  }
  template <class Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof(Number)).data(), sizeof(Number));
    return value;
  }
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      throw std::runtime_error("the pickle ends too early");
    }
    const std::size_t length = end - at_;
    return take(length + 1).substr(0, length);
  }
  std::int64_t long_integer(std::size_t num_bytes) {
    const auto text = take(num_bytes);
    if (num_bytes > 8) {
      throw std::runtime_error("it holds an integer of more than 64 bits");
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < num_bytes; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
    }
    if (num_bytes > 0 && num_bytes < 8 && (value >> (8 * num_bytes - 1) & 1U) != 0) {
      value |= ~std::uint64_t{0} << (8 * num_bytes);  // sign
    }
    return static_cast<std::int64_t>(value);
  }

  // --- stack ---
  void push(c10::IValue value) { stack_.push_back(std::move(value)); }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  c10::IValue& top() {
    if (stack_.size() <= floor()) {
      throw std::runtime_error("the pickle takes a value that is not there");
    }
    return stack_.back();
  }
  std::vector<c10::IValue> pop(std::size_t count) {
    if (stack_.size() - floor() < count) {
      throw std::runtime_error("the pickle takes a value that is not there");
    }
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<c10::IValue> values(std::make_move_iterator(first),
                                    std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    return values;
  }
  std::vector<c10::IValue> pop_to_mark() {
    if (marks_.empty()) {
      throw std::runtime_error("the pickle takes a mark that is not there");
    }
    auto values = pop(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }
  void remember(std::size_t key) { memo_[key] = top(); }
  void recall(std::size_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) {
      throw std::runtime_error("the pickle takes a value that is not there");
    }
    push(found->second);
  }

  // --- containers ---
  static bool is_container(const c10::IValue& value) {
    return value.isGenericDict() || value.isList() || value.isTuple();
  }
  // Every new container passes here, so an address that is used again starts afresh.
  void push_container(c10::IValue value) {
    containers_[value.internalToPointer()] = {};
    push(std::move(value));
  }
  void put_into(const c10::IValue& parent, const c10::IValue& child) {
    if (!is_container(child)) {
      return;
    }
    auto& inner = containers_[child.internalToPointer()];
    inner.inside = true;
    auto& outer = containers_[parent.internalToPointer()];
    if (outer.inside || &inner == &outer) {
      throw std::runtime_error("it holds a value that contains itself");
    }
    outer.depth = std::max(outer.depth, inner.depth + 1);
    if (outer.depth > kMaxDepth) {
      throw std::runtime_error("its values are nested too deeply");
    }
  }
  void require_open(const c10::IValue& container) {
    if (containers_[container.internalToPointer()].inside) {
      throw std::runtime_error("it holds a value that contains itself");
    }
  }
  void push_tuple(const std::vector<c10::IValue>& elements) {
    c10::IValue tuple = c10::ivalue::Tuple::create(elements);
    containers_[tuple.internalToPointer()] = {};
    for (const auto& element : elements) {
      put_into(tuple, element);
    }
    push(std::move(tuple));
  }
  void append(const std::vector<c10::IValue>& elements) {
    c10::IValue& target = top();
    if (!target.isList()) {
      throw std::runtime_error("the pickle appends to what is no list");
    }
    require_open(target);
    auto list = target.toList();
    for (const auto& element : elements) {
      put_into(target, element);
      list.push_back(element);
    }
  }
  void set_items(const std::vector<c10::IValue>& items) {
    c10::IValue& target = top();
    if (!target.isGenericDict() || items.size() % 2 != 0) {
      throw std::runtime_error("the pickle sets items of what is no dict");
    }
    require_open(target);
    auto dict = target.toGenericDict();
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].isString() && !items[i].isInt()) {
        throw std::runtime_error(str("a dict key of kind ", items[i].tagKind(), " is not read"));
      }
      put_into(target, items[i + 1]);
      dict.insert_or_assign(items[i], items[i + 1]);
    }
  }

  static std::vector<c10::IValue> elements_of(const c10::IValue& tuple) {
    if (!tuple.isTuple()) {
      throw std::runtime_error("the pickle holds another value where a tuple should be");
    }
    const auto& elements = tuple.toTupleRef().elements();
    return std::vector<c10::IValue>(elements.begin(), elements.end());
  }

  // --- objects ---
  [[noreturn]] static void refuse(const std::string& name) {
    throw std::runtime_error(str("it holds a Python object of '", name, "', which is not read"));
  }
  static const std::string& global_name(const c10::IValue& value) {
    if (!value.isCapsule()) {
      throw std::runtime_error("the pickle calls what is no function");
    }
    return c10::static_intrusive_pointer_cast<Global>(value.toCapsule())->name;
  }

  // ("storage", torch.FloatStorage, key, location, numel) -> 1-D tensor, on the CPU whatever
  // location is.
  void load_storage() {
    const auto id = pop(1)[0];
    const auto parts = elements_of(id);
    if (parts.size() != 5 || !parts[0].isString() || parts[0].toStringRef() != "storage" ||
        !parts[2].isString() || !parts[4].isInt() || parts[4].toInt() < 0) {
      throw std::runtime_error("it holds a storage of unknown form");
    }
    const std::string name = global_name(parts[1]);
    for (const auto& [type, type_name] : kStorages) {
      if (name == type_name) {
        return push(storage_(parts[2].toStringRef(), type, parts[4].toInt()));
      }
    }
    throw std::runtime_error(str("it holds tensors of type ", name, ", which are not read"));
  }

  static std::vector<std::int64_t> integers(const c10::IValue& value) {
    std::vector<std::int64_t> result;
    for (const auto& element : elements_of(value)) {
      if (!element.isInt() || element.toInt() < 0) {
        throw std::runtime_error("it holds a tensor with a wrong size");
      }
      result.push_back(element.toInt());
    }
    return result;
  }

  // torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[,
  // metadata])
  static torch::Tensor rebuild_tensor(c10::ArrayRef<c10::IValue> args) {
    if (args.size() < 4 || !args[0].isTensor() || args[0].toTensor().dim() != 1 ||
        !args[1].isInt() || args[1].toInt() < 0) {
      throw std::runtime_error("it holds a tensor of unknown form");
    }
    const torch::Tensor storage = args[0].toTensor();
    const auto size = integers(args[2]);
    const auto stride = integers(args[3]);
    if (size.size() != stride.size() || size.size() > 64) {
      throw std::runtime_error("it holds a tensor with a wrong size");
    }
    // The element after the last one, checked for overflow: nothing may lie outside of the storage.
    std::int64_t end = 0;
    std::int64_t numel = 1;
    bool wrong = __builtin_add_overflow(args[1].toInt(), 1, &end);
    for (std::size_t i = 0; i < size.size() && !wrong; ++i) {
      std::int64_t reach = 0;
      wrong = __builtin_mul_overflow(numel, size[i], &numel) ||
              (size[i] > 0 && (__builtin_mul_overflow(size[i] - 1, stride[i], &reach) ||
                               __builtin_add_overflow(end, reach, &end)));
    }
    if (wrong || (numel > 0 && end > storage.numel())) {
      throw std::runtime_error("it holds a tensor that is larger than its data");
    }
    if (storage.is_meta()) {
      return torch::empty(size, storage.options());
    }
    return torch::empty({0}, storage.options())
        .set_(storage.storage(), numel > 0 ? args[1].toInt() : 0, size, stride);
  }

  void reduce() {
    const auto call = pop(2);
    const std::string& name = global_name(call[0]);
    const auto args = elements_of(call[1]);
    if (name == "collections.OrderedDict" && args.empty()) {
      return push_container(c10::impl::GenericDict(c10::AnyType::get(), c10::AnyType::get()));
    }
    if (name == "torch._utils._rebuild_tensor_v2") {
      return push(rebuild_tensor(args));
    }
    if (name == "torch._utils._rebuild_parameter" && !args.empty() && args[0].isTensor()) {
      return push(args[0]);
    }
    refuse(name);
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  const StorageReader& storage_;
  std::vector<c10::IValue> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::size_t, c10::IValue> memo_;
  std::unordered_map<const void*, Container> containers_;
};

}  // namespace

Pickled pickle(const c10::IValue& value) {
  Pickled result;
  // Tagged aggregates would be calls that weights_only refuses.
  torch::jit::Pickler pickler(
      [&](const char* bytes, std::size_t size) { result.bytes.append(bytes, size); }, nullptr,
      nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(storable(value));
  pickler.stop();
  result.storages = pickler.tensorData();
  return result;
}

c10::IValue unpickle(std::string_view bytes, const StorageReader& storage) {
  return Machine(bytes, storage).run();
}

}  // namespace orchard::artifacts
