// Bytes over an arithmetic rate are nothing.
#include "sim/units.hpp"

sim::Seconds right = sim::bytes(1) / sim::gigabytes_per_second(1);
#ifdef PARAGAUGE_WRONG
// error: no match for .operator/.|invalid operands to binary expression
sim::Seconds wrong = sim::bytes(1) / sim::teraflops_per_second(1);
#endif
