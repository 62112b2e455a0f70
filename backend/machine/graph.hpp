// Work of an accelerator's stream that is captured, to be done again by one call of the host's: a CUDA graph.
//
//   const std::unique_ptr<Graph> graph = make_graph(stream.device());
//   graph->capture([&] { x.mul_(2); });    // nothing is done yet
//   graph->replay();                       // x doubles
//   stream.synchronize();
//
// Captured is what the calling thread's current stream is given, which mustn't be the default one, and what other
// streams are given from when they wait for an event of the capture on; at the end they must have been waited for.
// Meanwhile the host may neither wait for these streams, nor ask for them or their events, nor copy from or to its own
// memory. What is allocated meanwhile keeps its place as long as the graph lives; everything else that the work touches
// must stay where it is.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace backend {

class Graph {
 public:
  virtual ~Graph() = default;
  /// Once. What the work throws it throws, and the streams capture no longer.
  virtual void capture(const std::function<void()>& work) = 0;
  /// Replays on the calling thread's current stream, as one item of it.
  virtual void replay() = 0;
};

/// ConfigError where this LibTorch has none for such a device.
std::unique_ptr<Graph> make_graph(c10::Device device);

/// LibTorch has no graphs but CUDA's: the hooks (at::AcceleratorHooksInterface) of a device
/// that a library brings make its.
class GraphMaker {
 public:
  virtual ~GraphMaker() = default;
  [[nodiscard]] virtual std::unique_ptr<Graph> make_graph() const = 0;
};

}  // namespace backend
