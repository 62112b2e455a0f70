// Only a time can be read in seconds.
#include "sim/units.hpp"

double right = sim::bytes(1).in_GiB();
#ifdef PARAGAUGE_WRONG
// error: .*no matching function for call to .*in_seconds|invalid reference to function .in_seconds.
double wrong = sim::bytes(1).in_seconds();
#endif
