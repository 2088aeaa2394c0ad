#include <gtest/gtest.h>

#include "cluster/launcher.h"
#include "tests/unit/with_environment.h"

namespace ringtrain {
namespace {

TEST(SlurmJob, OutsideSlurmThereIsNone) {
  const WithEnvironment environment(Variables{});
  EXPECT_FALSE(slurm_job().in_slurm());
}

TEST(SlurmJob, ATaskOfAnArrayIsNamedByArrayAndTaskAndNeverByTheBareId) {
  const WithEnvironment environment(Variables{{"SLURM_JOB_ID", "4709"},  // the array's id is also that of its last task
                                              {"SLURM_ARRAY_JOB_ID", "4709"},
                                              {"SLURM_ARRAY_TASK_ID", "3"},
                                              {"SLURM_RESTART_COUNT", "2"},
                                              {"SLURM_JOB_NODELIST", "node[1-2]"}});
  EXPECT_EQ(slurm_job().name(), "4709_3");
  EXPECT_EQ(describe(slurm_job(), "srun --mpi=pmix"),
            "Slurm job 4709_3, restart 2, on node[1-2], started by srun --mpi=pmix");
}

TEST(SlurmJob, AFirstStartWithoutArrayIsItsId) {
  const WithEnvironment environment(Variables{{"SLURM_JOB_ID", "17"}});
  EXPECT_EQ(describe(slurm_job(), "none"), "Slurm job 17");
  EXPECT_EQ(slurm_job().restarts, 0);
}

std::string launcher_of(const Variables& variables) {
  const WithEnvironment environment(variables);
  return launcher_name();
}

TEST(Launcher, IsKnownByTheVariablesThatItSets) {
  EXPECT_EQ(launcher_of({}), "none");
  EXPECT_EQ(launcher_of({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}}), "none");  // a batch script
  EXPECT_EQ(launcher_of({{"SLURM_STEP_NUM_TASKS", "4"}}), "srun");
  EXPECT_EQ(launcher_of({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMIX_RANK", "0"}}), "srun --mpi=pmix");
  EXPECT_EQ(launcher_of({{"SLURM_STEP_NUM_TASKS", "4"}, {"PMI_RANK", "0"}}), "srun --mpi=pmi2");
  EXPECT_EQ(launcher_of({{"PMI_RANK", "0"}}), "mpiexec");
}

TEST(Launcher, MpirunIsNotTakenForTheSrunThatStartedItsDaemons) {
  EXPECT_EQ(launcher_of({{"SLURM_STEP_NUM_TASKS", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "1"}}), "mpirun");
  EXPECT_EQ(launcher_of({{"SLURM_STEP_NUM_TASKS", "2"}, {"HYDI_CONTROL_FD", "5"}, {"PMI_RANK", "1"}}), "mpiexec");
}

}  // namespace
}  // namespace ringtrain
