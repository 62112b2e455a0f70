// A small program of a sender and a receiver, as long as a test wants it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "sim/program/program.hpp"

namespace backend {

/// `count` linear layers of n×n on rank 0, whose result goes to rank 1.
inline sim::Program chain(std::int64_t n, int count) {
  sim::Program program;
  program.strategy = "by hand";
  program.global_batch = 1;
  program.mesh.axes = {{"rank", 2}};
  const sim::OpKind& linear = sim::op_table().at("linear");
  const sim::TensorSpec spec{sim::Dtype::f32, {n, n}};
  sim::OpInstance op{&linear,
                     sim::complete_attributes(linear, {{"out_features", static_cast<double>(n)}, {"bias", 0}}, "test"),
                     {spec}};
  program.works.push_back({op, sim::Pass::forward});
  sim::Role sender, receiver;
  sender.name = "sender";
  sender.ranks = {0};
  receiver.name = "receiver";
  receiver.ranks = {1};
  const std::uint32_t weight = sender.add_tensor("weight", spec, sim::TensorClass::weight, true,
                                                 {sim::Initial::Kind::constant, 1.0 / static_cast<double>(n)});
  std::uint32_t value =
      sender.add_tensor("input", spec, sim::TensorClass::input, true, {sim::Initial::Kind::constant, 3});
  for (int i = 0; i < count; ++i) {
    const std::uint32_t next = sender.add_tensor(fmt::format("value{}", i), spec, sim::TensorClass::activation);
    std::vector<std::uint32_t> frees;
    if (i > 0) frees.push_back(sender.tensors[value].storage);
    sender.add({.work = 0, .reads = {value, weight}, .writes = {next}, .frees = frees});
    value = next;
  }
  const std::uint32_t send = sender.add({.kind = sim::InstructionKind::send, .peer = 0, .by = 1, .reads = {value}});
  sender.add(
      {.kind = sim::InstructionKind::wait, .ticket = sender.ticket[send], .frees = {sender.tensors[value].storage}});
  const std::uint32_t received = receiver.add_tensor("received", spec, sim::TensorClass::activation);
  const std::uint32_t recv =
      receiver.add({.kind = sim::InstructionKind::recv, .peer = 0, .by = -1, .writes = {received}});
  receiver.add({.kind = sim::InstructionKind::wait,
                .ticket = receiver.ticket[recv],
                .frees = {receiver.tensors[received].storage}});
  program.roles = {sender, receiver};
  return program;
}

}  // namespace backend
