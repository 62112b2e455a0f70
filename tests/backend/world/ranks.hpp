// Ranks for tests of worlds, and what every world must do.
//
//   expect_no_errors(execute_local(4, 20, do_collectives));                     // threads of this program
//   expect_no_errors(execute_local(4, 20, do_collectives, "privateuseone"));    // … on an accelerator
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/world/world.hpp"

namespace backend {

using RankBody = std::function<void(Communicator&)>;

/// One group of all ranks.
std::vector<sim::Group> everyone(std::uint32_t ranks);

/// Ranks of world `local`. What each rank's thread threw, or "".
std::vector<std::string> execute_local(std::uint32_t ranks, double timeout_s, const RankBody& execute,
                                       const std::string& device = "cpu");
void expect_no_errors(const std::vector<std::string>& errors);

/// Every kind of collective, with every reduction, from every root, in three dtypes: equal parts in one tensor, and
/// uneven ones in a tensor each, apart and in one storage, against plain arithmetic.
void do_collectives(Communicator& rank);

}  // namespace backend
