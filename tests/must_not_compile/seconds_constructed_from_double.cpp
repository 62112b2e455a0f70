// Not with the constructor either.
#include "sim/units.hpp"

sim::Seconds right = sim::microseconds(20);
#ifdef PARAGAUGE_WRONG
// error: .*is private within this context|calling a private constructor
sim::Seconds wrong(20);
#endif
