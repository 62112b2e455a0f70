// Training: steps on an epoch's batches, from a state on. What Session::run makes of it is in feed.hpp and state.hpp.
//
//   RunRequest request{.program = program, .warmup_steps = 0, .steps = 31};
//   request.training = Training{.data = source, .epoch = 2, .state = state};
//   state = session->run(request).state;                    // epoch 3 begins with it
#pragma once

#include <cstdint>
#include <string>

#include "backend/train/dataset.hpp"

namespace backend {

struct Training {
  DataSource data;
  std::int64_t epoch = 0;         // of which the samples have the order
  std::int64_t first_sample = 0;  // in this order, of the first step
  std::string state{};  // of parameters, buffers and the optimizer (state.hpp), as safetensors; empty: the first values
};

}  // namespace backend
