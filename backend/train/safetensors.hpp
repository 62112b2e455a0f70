// Tensors by name, and texts by name, in safetensors' format, which PyTorch's users read (safetensors.torch.load_file).
//
//   Safetensors file{.tensors = {{"fc.weight", weight}}, .metadata = {{"epoch", "3"}}};
//   const std::string bytes = to_bytes(file);
//   Safetensors same = safetensors_from(bytes, "net.safetensors");
//
// The length of a JSON object in eight bytes, the lowest first; the object, {"__metadata__": {text: text}, "fc.weight":
// {"dtype": "F32", "shape": [10, 4], "data_offsets": [0, 160]}, …}; the tensors' values, one tensor after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>

namespace backend {

struct Safetensors {
  std::map<std::string, at::Tensor> tensors;  // on the CPU
  std::map<std::string, std::string> metadata;
};

std::string to_bytes(const Safetensors& file);
/// ConfigError for bytes that are truncated or another format. `where` names them in messages.
Safetensors safetensors_from(std::string_view bytes, const std::string& where);

}  // namespace backend
