// The valid program in which tests of validate plant their faults.
//
//   with("3 wait t0\n", "");        // what validate says of it without that line
#pragma once

#include <string>
#include <string_view>

#include "sim/program/program.hpp"
#include "tests/sim/testing.hpp"

namespace sim::testing {

/// Two ranks that exchange a tensor each way, then reduce one.
inline const std::string kExchange = R"(paragauge-program-2
model none
strategy none
mesh rank=2
partition global_batch=1 microbatches=1
group data rank
work relu.forward f32[4] inplace=0
role left ranks=0
tensor x f32[4] input persistent
tensor g f32[4] communication persistent
tensor a f32[4] activation
tensor b f32[4] activation
0 compute w0 node=n : x -> a
1 send t0 to=rank+1 tag=0 node=n : a
2 recv t1 from=rank+1 tag=0 node=n : -> b
3 wait t0
4 wait t1
5 compute w0 : b -> x ; free a b
6 collective t2 kind=all_reduce group=data : g -> g
7 wait t2
8 collective t3 kind=broadcast group=data root=0 : x -> x
9 wait t3
role right ranks=1
tensor x f32[4] input persistent
tensor g f32[4] communication persistent
tensor a f32[4] activation
0 recv t0 from=rank-1 tag=0 node=n : -> a
1 send t1 to=rank-1 tag=0 node=n : x
2 wait t0
3 wait t1
4 compute w0 : a -> x ; free a
5 collective t2 kind=all_reduce group=data : g -> g
6 wait t2
7 collective t3 kind=broadcast group=data root=0 : x -> x
8 wait t3
)";

/// What validate says of it.
inline std::string message(const std::string& text) {
  return message_of([&] { validate(program_from_text(text)); });
}
/// The exchange with one thing changed.
inline std::string with(std::string_view from, std::string_view to) { return message(replaced(kExchange, from, to)); }
inline std::string with(std::string_view from, std::string_view to, std::string_view from2, std::string_view to2) {
  return message(replaced(replaced(kExchange, from, to), from2, to2));
}

}  // namespace sim::testing
