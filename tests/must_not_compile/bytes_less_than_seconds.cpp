// A size and a time don't compare.
#include "sim/units.hpp"

bool right = sim::bytes(1) < sim::bytes(2);
#ifdef PARAGAUGE_WRONG
// error: no match for .operator<.|invalid operands to binary expression
bool wrong = sim::bytes(1) < sim::seconds(2);
#endif
