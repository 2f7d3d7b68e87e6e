// Tells the sections of a configuration (structs with a field list) from its values.
#pragma once

namespace orchard::config {

struct Field;

struct AnyVisitor {
  template <class T>
  void operator()(const T& value, const Field& field);
};

template <class T>
constexpr bool kIsSection =
    requires(const T& section, AnyVisitor& visitor) { T::fields(section, visitor); };

}  // namespace orchard::config
