#include "cluster/nccl_abort.h"

#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <thread>

#include "cluster/session.h"

namespace ringtrain {

void abort_nccl(const NcclApi& api, NcclComm* comm, const std::string& why, double deadline_seconds) {
  try {
    auto ended = std::make_shared<std::promise<void>>();
    std::thread([function = api.abort, comm, ended] {
      function(comm);
      ended->set_value();
    }).detach();
    if (ended->get_future().wait_for(std::chrono::duration<double>(deadline_seconds)) == std::future_status::ready)
      return;
    std::fprintf(stderr, "ringtrain: error (%s): %s\n  NCCL did not end within %g s after that; ending the job\n",
                 rank_label().c_str(), why.c_str(), deadline_seconds);
  } catch (const std::exception& e) {  // no thread could be started
    std::fprintf(stderr, "ringtrain: error (%s): %s\n  NCCL cannot be ended: %s\n", rank_label().c_str(), why.c_str(),
                 e.what());
  }
  abort_job(1);
}

}  // namespace ringtrain
