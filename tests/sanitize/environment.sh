# Sets the environment for programs with a sanitizer. tests/sanitize/run.sh reads it. A process with a finding ends with
# exit code 66. The sanitizers of addresses and of undefined behaviour end it at the first finding. ThreadSanitizer goes
# on and reports all findings. llvm-symbolizer writes the names of functions into the stacks.
here=$PWD/tests/sanitize
symbolizer=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer || true)
# allocator_may_return_null: tests ask for more memory than there is, and expect to be refused.
export ASAN_OPTIONS=exitcode=66:allocator_may_return_null=1:detect_stack_use_after_return=0:external_symbolizer_path=$symbolizer
export LSAN_OPTIONS=suppressions=$here/leaks.supp:print_suppressions=0
export UBSAN_OPTIONS=halt_on_error=1:exitcode=66:print_stacktrace=1:external_symbolizer_path=$symbolizer
# ignore_noninstrumented_modules: leaves out calls to memcpy and the like by libraries that were built without the
# sanitizer. die_after_fork=0: tests fork children that start threads. LLVM's OpenMP tells ThreadSanitizer about its
# barriers through its own tool Archer.
export TSAN_OPTIONS=suppressions=$here/threads.supp:ignore_noninstrumented_modules=1:die_after_fork=0:exitcode=66:halt_on_error=0:second_deadlock_stack=1:external_symbolizer_path=$symbolizer
archer=$(ls /usr/lib/llvm-*/lib/libarcher.so 2> /dev/null | tail -n 1 || true)
[ -z "$archer" ] || export OMP_TOOL_LIBRARIES=$archer
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
