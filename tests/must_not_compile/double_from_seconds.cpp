// A time isn't a number: in which unit?
#include "sim/units.hpp"

double right = sim::seconds(1).in_milliseconds();
#ifdef PARAGAUGE_WRONG
// error: cannot convert .*Quantity.* to .double.|no viable conversion from .*Quantity
double wrong = sim::seconds(1);
#endif
