// How inputs are models: a file, a file after a line with options (",image=64,loss=cross_entropy"), or a text alone
// ("convnet,image=64").
#pragma once

#include <algorithm>
#include <string>

#include "tests/fuzz/target.hpp"

namespace fuzz {

/// For load_model. `file` gets the input's file, where it is one.
inline std::string model_text(File& file, const std::uint8_t* data, std::size_t size) {
  const std::string_view text = text_of(data, size);
  const std::size_t end = text.starts_with('{') ? 0 : std::min(text.find('\n'), text.size());
  std::string spec(text.substr(0, end));
  if (spec.empty() || spec.starts_with(',')) spec = file.holding(text.substr(end)) + spec;
  return spec;
}

}  // namespace fuzz
