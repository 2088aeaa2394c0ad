// Paths as users write them in experiments and options: ~ stands for the home folder, and $NAME for an environment
// variable.
#pragma once

#include <string>
#include <string_view>

namespace ringtrain {

// Returns the path with a leading ~/ replaced by $HOME/, and with $NAME or ${NAME} replaced by the variable's value. A
// $ without a name stays. Throws Error for a variable that is not set or is empty, and for ~user. Its message begins
// with `what`, the name of the key or option that has the path.
std::string expand_path(std::string_view path, std::string_view what);

}  // namespace ringtrain
