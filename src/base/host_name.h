// The name of this machine in its network.
#pragma once

#include <string>

namespace ringtrain {

std::string host_name();  // "node17"; at most 254 bytes

}  // namespace ringtrain
