#include "backend/machine/graph.hpp"

#include <ATen/Context.h>

#include "backend/machine/cuda.hpp"
#include "sim/error.hpp"

namespace backend {

std::unique_ptr<Graph> make_graph(c10::Device device) {
  if (device.is_cuda()) return make_cuda_graph();
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(device.type());
  if (const auto* maker = dynamic_cast<const GraphMaker*>(&hooks)) return maker->make_graph();
  throw sim::ConfigError("graph: device={} has none", c10::DeviceTypeName(device.type(), /*lower_case=*/true));
}

}  // namespace backend
