// A number isn't a time: is it seconds or microseconds?
#include "sim/units.hpp"

sim::Seconds right = sim::seconds(0.5);
#ifdef PARAGAUGE_WRONG
// error: conversion from .double. to non-scalar type|no viable conversion from .double.
sim::Seconds wrong = 0.5;
#endif
