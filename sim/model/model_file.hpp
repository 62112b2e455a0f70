// Model files: sim/catalog/models/*.json, or one of your own.
//
//   Model model = read_model_file("sim/catalog/models/toy_mlp.json");
//
// The format. Shapes are per sample; the batch dimension comes in front when a model is lowered.
//
//   {"format": "paragauge-model-1",
//    "name": "tiny",
//    "description": "one line for `paragauge list`",       optional
//    "input": [3, 32, 32],                                 [channels, height, width], or [features]
//    "target": {"classes": 10},                            the last node must give [batch, classes]
//    "global_batch": 64,                                   optional: 1
//    "optimizer": {"kind": "sgd", "lr": 0.1},              an optimizer of op_table and its attributes
//    "loss": "cross_entropy",                              a loss of op_table: the node after the last, named "loss"
//    "cuts": {"half": ["layer1"]},                         optional: what the strategies' cut=half stands for
//    "blocks": {"basic": {"nodes": […]}},                  optional
//    "nodes": […]}
//
// A node:
//
//   {"name": "conv1", "op": "conv2d", "inputs": ["input"], "out_channels": 64, "kernel_size": 3, "bias": false}
//
//   name      as in torchvision's state_dict where there is one; unique, not input, target or loss
//   op        a layer of op_table; `paragauge list` names them
//   inputs    earlier nodes of the same list, or "input", the model's; optional: the node before
//   initial   optional: "xavier_uniform", of a conv2d's or linear layer's weight, whose bias then begins with 0; else
//             PyTorch's default
//   others    the op's attributes: numbers, true, false
//
// A block is a list of nodes that is written once. It is used in place of a node:
//
//   {"block": "basic", "name": "layer1.{i}", "first": 0, "repeat": 2, "width": 64}
//
//   block     its name in "blocks"
//   name      what the names of its nodes begin with: "layer1.0.conv1"; later nodes read its last output as "layer1.0"
//   repeat    optional: so many of them one after the other; the name's {i} counts them
//   first     optional: from this number on, else from 0
//   others    arguments: in the block, "out_channels": "$width" takes the value of "width"
//
// Files that `paragauge import` makes of PyTorch modules have the format paragauge-model-2 (imported_file.hpp).
//
// Inside a block "in" is the output that comes before it, and "input" isn't known. Blocks may use blocks, 16 deep.
#pragma once

#include <filesystem>
#include <string>

#include "sim/model/model.hpp"

namespace sim {

constexpr std::int64_t kLargestGlobalBatch = 10'000'000;

/// The model with the file's own loss, optimizer and sizes. ConfigError with path and place.
Model read_model_file(const std::filesystem::path& path);

/// The file's "description"; of the rest only that it is JSON.
std::string model_description(const std::filesystem::path& path);

/// The loss node of a model whose node `prediction` comes last. `where` begins the message of a ConfigError.
Node make_loss(const std::string& kind_name, int prediction, const std::string& where);
/// An optimizer with all its attributes, without inputs.
OpInstance make_optimizer(const std::string& kind_name, const Attributes& given, const std::string& where);

}  // namespace sim
