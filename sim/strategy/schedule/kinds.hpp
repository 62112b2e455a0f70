// The constructors of the schedule table's rows (one per .cpp of this folder, listed in table.cpp).
#pragma once

#include "sim/strategy/schedule/schedule.hpp"

namespace sim {

ScheduleKind gpipe_kind();
ScheduleKind one_f_one_b_kind();
ScheduleKind forward_only_kind();

}  // namespace sim
