// What happens to the tests behind one that has left the GPU unusable: they are not run, and said to be not run.
#pragma once

namespace ringtrain::cuda {

// The exit code of such a run: whoever started it runs the tests that are left in a process of their own.
constexpr int device_lost_exit_code = 75;

// Looks at the GPU after every test. Where it no longer works that test fails, every later one is skipped with a line
// `not run: Suite.Name`, and the last line says how many were left. Under mpirun the job ends at once: the other ranks
// would wait for this one.
void watch_device();
// `result` of the tests, or device_lost_exit_code.
int exit_code_of_tests(int result);

}  // namespace ringtrain::cuda
