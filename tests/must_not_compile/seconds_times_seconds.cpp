// Nothing here is a squared time.
#include "sim/units.hpp"

auto right = sim::seconds(2) * 2;
#ifdef PARAGAUGE_WRONG
// error: no match for .operator\*.|invalid operands to binary expression
auto wrong = sim::seconds(2) * sim::seconds(2);
#endif
