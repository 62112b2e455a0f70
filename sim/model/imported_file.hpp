// Files of imported models, which bench/import writes: what they have beside the nodes.
//
//   JsonObject file = read_json_file("my_model.json");
//   const Bodies bodies = read_imported(file, model);    // and the model's inputs, target, parameters, constants
//
// The format, "paragauge-model-2", has name, description, loss, optimizer, global_batch and nodes as paragauge-model-1
// (model_file.hpp), without blocks, and
//
//   "inputs": [{"name": "input", "dtype": "i64", "shape": ["B", 64], "below": 256}]   the first is "input"; i64
//                                                       in [0, below), or f32: in (0, below), without it on both sides of 0
//   "target": {"classes": 256, "shape": ["B", 64]}      cross_entropy; of other losses the prediction's shape, no classes
//   "parameters": {"wte.weight": {"shape": [256, 128], "center": 0, "bound": 0.035, "also": ["lm_head.weight"]}}
//   "constants": {"c0": {"dtype": "i64", "shape": [1, 64], "values": {"arange": [0, 1]}, "frozen": "pos.weight"}}
//   "units": ["h.0", "h.1"]                             blocks, by what the names of their nodes begin with
//   "bodies": {"gelu/1": {"inputs": ["f32[B,64]"], "parameters": [], "output": "f32[B,64]", "saved": [],
//              "forward": ["o=gelu(i0)"], "backward": ["gi0=gelu_backward(g,i0)"],
//              "flops": [[0, 64], [0, 64]], "bytes": [[0, 512], [0, 768]], "kernels": [1, 1], "rows": true,
//              "products": {"matmul f32": [[0, 64], [0, 128]]}}}
//   "half": {"gelu/half1": …}                           further bodies, of what torch.autocast makes of nodes in bf16,
//                                                       where it may be f16 as well; or a text: why there are none
//   "half_parameters": {"gelu/halved1": …}              or of nodes where parameters are bf16 themselves; or a text; may
//                                                       be left out
//
// Values of a constant: arange [first, step], full x, runs [[x, how many], …], list [x, …] (x of these two may be "inf"
// or "-inf") or uniform [center, bound], in row-major order. A node {"op": "aten", "body": "gelu/1", "parameters": ["…"]}
// names its body and, in the body's order, its parameters; so may other nodes whose parameters are listed. A node whose
// body is another in half precision has the key "half" (or "half_parameters") with its name, and so may a node of another
// op that has no parameters; a constant that is bf16 where parameters are has "halved": true. Bodies are body.hpp's; one that can be cut for tensor parallelism has "units": 12, "sums": ["o"] and four numbers in each of FLOPs and bytes. A node's
// body of what lies between, that treats each position alike, has "positions": 64 instead of "units". A node's
// key "in_parts" names the body that takes its own's place there: an embedding's that looks up what is in its part of the
// vocabulary. A body with "own_backward": true has what a torch.autograd.Function has, not its forward's derivative.
#pragma once

#include <map>
#include <string>

#include "sim/model/model.hpp"
#include "sim/text/spec.hpp"

namespace sim {

using Bodies = std::map<std::string, const Body*>;

/// Reads all but name, description, loss, optimizer, global_batch, units, nodes and both kinds of half precision. ConfigError
/// with the place.
Bodies read_imported(JsonObject& file, Model& model);

/// Those for half precision, and for parameters in it: none where there are none, which the model says then, too
/// (Model::no_half, no_half_parameters).
Bodies read_half(JsonObject& file, Model& model);
Bodies read_half_parameters(JsonObject& file, Model& model);

}  // namespace sim
