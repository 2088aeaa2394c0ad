// Skips all tests after one that has left the GPU unusable, and reports that they were not run.
#pragma once

namespace ringtrain::cuda {

// The exit code of such a run. The caller should run the remaining tests in a new process.
constexpr int device_lost_exit_code = 75;

// Checks after every test that the GPU still works. If it does not, that test fails, every later test is skipped with a
// line `not run: Suite.Name`, and the last line says how many tests were skipped. Under mpirun the job ends at once,
// because the other ranks would wait for this one.
void watch_device();
// Returns `result`, the exit code of the tests, or device_lost_exit_code.
int exit_code_of_tests(int result);

}  // namespace ringtrain::cuda
