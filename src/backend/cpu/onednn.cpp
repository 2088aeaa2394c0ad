#include "backend/cpu/onednn.h"

#include "base/error.h"

namespace ringtrain::cpu {

dnnl::engine& onednn_engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

dnnl::stream& onednn_stream() {
  thread_local dnnl::stream s(onednn_engine());
  return s;
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return cat(v->major, ".", v->minor, ".", v->patch);
}

}  // namespace ringtrain::cpu
