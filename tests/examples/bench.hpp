// What the examples in bench's headers don't declare themselves (tests/examples/extract.sh). Compiled, never linked.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bench/commands.hpp"
#include "sim/model/model.hpp"
#include "sim/strategy/strategy.hpp"

namespace bench {

extern Options options;
extern sim::Model model;
extern sim::Strategy strategy;
extern CLI::App app;
extern char** argv;
extern std::vector<std::string> parts;
void use(const std::vector<double>& step_s);

}  // namespace bench
