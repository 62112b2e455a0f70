// LibTorch's CUDA half, loaded only where a device of it is asked for.
//
//   load_cuda();                                                       // now at::Device("cuda") is known
//   const std::unique_ptr<Graph> graph = make_cuda_graph();            // backend/machine/graph.hpp
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "backend/machine/graph.hpp"

namespace backend {

/// Before this process asks LibTorch for anything of CUDA, which remembers that there is none. Does nothing where it is
/// loaded, or in a build without CUDA (whose LibTorch then has no such device). ConfigError when it can't be loaded.
void load_cuda();

/// ConfigError in a build without CUDA.
std::unique_ptr<Graph> make_cuda_graph();
/// A stream of its own, for as long as the process lives. ConfigError as above.
c10::Stream make_cuda_stream(c10::Device device);
/// The calling thread's current stream does nothing for at least so long. ConfigError as above.
void hold_cuda(double seconds);

}  // namespace backend
