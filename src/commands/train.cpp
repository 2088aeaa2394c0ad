// `ringtrain train` does one run on all ranks of the job.
#include <optional>

#include "cluster/watchdog.h"
#include "commands/commands.h"
#include "commands/run_training.h"
#include "run/folder.h"
#include "study/trial_record.h"

namespace ringtrain {

namespace {

int train_run(const TrainArguments& arguments, Session& session) {
  std::optional<StartGuard> guard("the ranks did not get the experiment");
  const std::unique_ptr<Communicator> start = make_mpi_communicator(session.job(), 1 << 16);
  RunSource source{arguments.experiment, ""};
  if (session.rank() == 0) source = source_of_run(source.experiment, arguments.resume);
  const Experiment experiment = shared_experiment(source.experiment, *start);
  guard.reset();  // from here on, the watchdog notices hangs
  return run_training({.session = session,
                       .experiment = experiment,
                       .command_line = arguments.command_line,
                       .resume = arguments.resume,
                       .resumed_folder = source.folder,
                       .pause_samples = arguments.pause_after,
                       .shares_node = arguments.shares_node});
}

}  // namespace

int train(const TrainArguments& arguments, Session& session) try {
  using End = TrialReport::End;
  const int code = train_run(arguments, session);
  const End end = code == training_paused ? End::paused : code == 0 ? End::finished : End::stopped;
  if (!arguments.report.empty() && session.rank() == 0) write_report(arguments.report, {end, "", "", ""});
  return code == training_paused ? 0 : code;
} catch (const std::exception& error) {
  if (!arguments.report.empty()) write_report(arguments.report, report_of(error));
  throw;
}

}  // namespace ringtrain
