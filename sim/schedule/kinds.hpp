// The constructors of the schedule table's rows (one per .cpp of this folder, listed in table.cpp).
#pragma once

#include "sim/schedule/schedule.hpp"

namespace sim {

ScheduleKind gpipe_kind();

}  // namespace sim
