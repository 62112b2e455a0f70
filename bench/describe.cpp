#include <fmt/format.h>

#include "bench/commands.hpp"
#include "sim/error.hpp"
#include "sim/model/model.hpp"

namespace bench {
namespace {

void print_row(const sim::NodeSummary& node, const std::string& output) {
  fmt::print("{:<28} {:<17} {:<20} {:>12} {:>12.2f} {:>12.2f} {:>10.3f} {:>10.3f} {:>12.3f}\n",
             sim::printable(node.name), node.op, output, node.parameters, node.forward_flops / 1e6,
             node.backward_flops / 1e6, node.forward_bytes / 1e6, node.backward_bytes / 1e6,
             static_cast<double>(node.activation_bytes) / 1048576.0);
}

}  // namespace

int describe(const Options& options) {
  for (const std::string& text : options.subject.models) {
    const sim::Model model = sim::load_model(text);
    const std::int64_t samples = options.rows > 0 ? options.rows : model.global_batch;
    fmt::print("{}{}{}\n{} samples per pass\n\n", sim::printable(model.text()), model.description.empty() ? "" : ": ",
               sim::printable(model.description), samples);
    fmt::print("{:<28} {:<17} {:<20} {:>12} {:>12} {:>12} {:>10} {:>10} {:>12}\n", "node", "op", "output", "parameters",
               "forward MFLOP", "backw. MFLOP", "fwd MB", "bwd MB", "activ. MiB");
    sim::NodeSummary total{.name = "total"};
    for (const sim::NodeSummary& node : sim::summarize(model, samples)) {
      print_row(node, fmt::format("[{}]", fmt::join(node.output, ",")));
      total.parameters += node.parameters;
      total.forward_flops += node.forward_flops;
      total.backward_flops += node.backward_flops;
      total.forward_bytes += node.forward_bytes;
      total.backward_bytes += node.backward_bytes;
      total.activation_bytes += node.activation_bytes;
    }
    print_row(total, "");
    fmt::print("\n");
    for (const auto& [name, cut] : model.cuts)
      fmt::print("{}\n", sim::printable(fmt::format("cut={:<12} stages end at {}", name, fmt::join(cut, ", "))));
  }
  return 0;
}

}  // namespace bench
