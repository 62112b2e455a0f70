// What a training step communicates by HyPar's model, and which choices communicate least (R3: Song et al. 2019, arXiv
// 1901.02067).
//
//   const std::vector<ChainLayer> chain = chain_of(model);
//   const LevelCuts paper = least_by_level(chain, 4), least = least_together(chain, 4);
//   fmt::print("{:.3g} GB\n", communicated_bytes(chain, paper) / 1e9);
//
// A model is a chain of layers with weights W, input F (as it comes out of the pool before it) and output F', the next
// one's input; E, the gradient of F, is as large. Devices are halved level by level, the outermost first. On each level
// a layer is data parallel (dp: half of the samples, all weights) or model parallel (in: half of the input channels).
// What a half reads of the other's, in elements A(·) of what the levels above have left:
//
//   within a layer (Table 1)     dp A(W)                     in A(F')
//   between two (Table 2)        dp, dp 0                    dp, in ¼ A(F) + ¼ A(E)
//                                in, in ½ A(E), not counted  in, dp ½ A(E), not counted
//
// dp halves F and F', in halves F and W; on level h there are 2^h pairs, and both halves of a pair read. So with D
// levels dp and M levels in, whatever their order, a step communicates
//
//   sum over layers of  2 (2^D - 1) W + 2 (2^M - 1) F' + T F
//
// where T are the levels on which the layer before is dp and this one in.
//
// "Not counted": Table 2 has it, but the choices and the bytes that the paper publishes (figures 5 and 8) come out only
// without (tests/sim/plan/communication_test.cpp). Nor is anything missing then: a sum of which each half goes on with
// its part is a reduce-scatter, ½ A(F'), and its gradient comes back by an all-gather, ½ A(E'): the A(F') of Table 1.
// That is what the strategy `hypar` does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/model/model.hpp"

namespace sim {

/// A layer's tensors in bytes, of the whole batch; weights without biases, as in the paper.
struct ChainLayer {
  std::string name;  // of the node
  double weight_bytes = 0, input_bytes = 0, output_bytes = 0;
};

/// The model's nodes with weights. ConfigError where a node reads something else than the node before it.
std::vector<ChainLayer> chain_of(const Model& model);

enum class Cut : std::uint8_t { dp, in };
/// [level, the outermost first][layer].
using LevelCuts = std::vector<std::vector<Cut>>;
LevelCuts all_cut(const std::vector<ChainLayer>& chain, std::size_t levels, Cut cut);

/// What each half communicates, in parts of A(F).
struct BetweenLayers {
  double dp_in = 0.5, in_in = 0, in_dp = 0;
};
constexpr BetweenLayers kTable2{.dp_in = 0.5, .in_in = 0.5, .in_dp = 0.5};

double communicated_bytes(const std::vector<ChainLayer>& chain, const LevelCuts& cuts,
                          const BetweenLayers& between = {});

/// The paper's algorithms 1 and 2: level by level, from the outermost, what communicates least on that level. Of equals
/// the first: dp.
LevelCuts least_by_level(const std::vector<ChainLayer>& chain, std::size_t levels, const BetweenLayers& between = {});

/// What communicates least on all levels together; each layer is cut by channels on its innermost levels.
LevelCuts least_together(const std::vector<ChainLayer>& chain, std::size_t levels);

}  // namespace sim
