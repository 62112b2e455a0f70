// The devices that ops are tested on: the CPU, a GPU where there is one (suites "Cuda/…"), and the stand-in accelerator in
// the program that has it (suites "StandinOps/…").
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "backend/machine/accelerator.hpp"
#include "sim/error.hpp"

namespace backend {

/// Nothing where this machine has no such device; `why` says so.
inline std::optional<at::Device> test_device(const std::string& name, std::string& why) {
  if (name == "cpu") return at::kCPU;
  try {
    return first_device(name);
  } catch (const sim::ConfigError& error) {
    why = error.what();
    return std::nullopt;
  }
}

}  // namespace backend

/// `cases_on(name)`: a generator of the suite's parameters on that device.
#define TEST_ON_DEVICES(Suite, cases_on)                   \
  INSTANTIATE_TEST_SUITE_P(Grid, Suite, cases_on("cpu"));  \
  INSTANTIATE_TEST_SUITE_P(Cuda, Suite, cases_on("cuda")); \
  INSTANTIATE_TEST_SUITE_P(StandinOps, Suite, cases_on("privateuseone"))
