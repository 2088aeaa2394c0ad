#include "backend/backend.h"
#include "base/error.h"

namespace ringtrain {

std::unique_ptr<Program> Backend::compile_part(const Graph&, std::int64_t, Precision, PassMode, std::int64_t, int) {
  throw Error("a GPU computes whole models here, and a pipeline gives each rank a part",
              "use machine.device=cpu, or parallel.kind: ring");
}

}  // namespace ringtrain
