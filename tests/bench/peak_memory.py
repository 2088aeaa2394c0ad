#!/usr/bin/env python3
"""Runs a command and writes the peak of its resident memory, in bytes, to a file of its own in FOLDER:
peak_memory.py FOLDER COMMAND ...   (under mpirun, once per rank)"""
import os
import sys

folder, command = sys.argv[1], sys.argv[2:]
pid = os.fork()
if pid == 0:
    os.execvp(command[0], command)
_, status, usage = os.wait4(pid, 0)
with open(os.path.join(folder, f"{pid}.peak"), "w") as file:
    file.write(str(usage.ru_maxrss * 1024))
sys.exit(os.waitstatus_to_exitcode(status) % 256)
