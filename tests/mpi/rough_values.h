// Values whose sum shows the order in which they were added.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "mpi_tests.h"

namespace ringtrain {

// Returns values whose sum depends on the order in which they are added.
template <class T = float>
std::vector<T> rough_values(std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] =
        static_cast<T>(std::sin(static_cast<double>(i) * 1.7 + session().rank() * 2.3) *
                       std::pow(10.0, static_cast<double>((i + static_cast<std::size_t>(session().rank())) % 7)));
  return values;
}

}  // namespace ringtrain
