// Describes which ranks update and keep which elements, if not every rank does all of it: parameter servers, and a ring
// with sharded optimizer state.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Returns one line for servers that are workers too or for sharded state; "" for other runs.
std::string describe_owners(const RunPlan& plan);

// Returns a table with a row for each kind of rank: its elements, the bytes of its optimizer state, and its memory. ""
// if all ranks do the same.
std::string owner_table(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
