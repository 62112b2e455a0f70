// How good a network is on samples that it wasn't trained on: a forward of each, on one device, batch norm by its
// running statistics.
//
//   const Evaluation after = evaluate(model, state, load_dataset(source, Part::test));
//   after.accuracy;                                   // 0.61: the largest output is the class's
#pragma once

#include <string>

#include "backend/train/dataset.hpp"
#include "sim/model/model.hpp"

namespace backend {

struct Evaluation {
  double loss = 0, accuracy = 0;
};

/// `state`: the model's parameters and buffers, as Session::run returns it.
Evaluation evaluate(const sim::Model& model, const std::string& state, const Dataset& dataset);

}  // namespace backend
