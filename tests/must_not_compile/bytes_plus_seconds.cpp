// A size and a time don't add.
#include "sim/units.hpp"

auto right = sim::bytes(1) + sim::bytes(1);
#ifdef PARAGAUGE_WRONG
// error: no match for .operator\+.|invalid operands to binary expression
auto wrong = sim::bytes(1) + sim::seconds(1);
#endif
