#include "tests/sim/testing.hpp"

namespace sim::testing {

std::filesystem::path tests_folder() { return PARAGAUGE_TESTS_DIR; }

}  // namespace sim::testing
