// `ringtrain train` does one run on all ranks of the job.
#include <optional>

#include "cluster/start_guard.h"
#include "commands/commands.h"
#include "commands/run_training.h"
#include "run/folder.h"

namespace ringtrain {

int train(const TrainArguments& arguments, Session& session) {
  std::optional<StartGuard> guard("the ranks did not get the experiment");
  const std::unique_ptr<Communicator> start = make_mpi_communicator(session.job(), 1 << 16);
  RunSource source{arguments.experiment, ""};
  if (session.rank() == 0) source = source_of_run(source.experiment, arguments.resume);
  const Experiment experiment = shared_experiment(source.experiment, *start);
  guard.reset();  // from here on, the watchdog notices hangs
  return run_training({.session = session,
                       .group = session.job(),
                       .experiment = experiment,
                       .data = [&](Communicator& ranks) { return shared_data(experiment, ranks); },
                       .command_line = arguments.command_line,
                       .resume = arguments.resume,
                       .resumed_folder = source.folder});
}

}  // namespace ringtrain
