"""Starts a script again in a Python that has the modules it needs.

Packages of a distribution are visible only to the distribution's own python3, and another python3 may come first on
PATH. The search is the same as in the Makefile.
"""
import importlib.util
import os
import subprocess
import sys


def lacks(modules):
    return [name for name in modules if importlib.util.find_spec(name) is None]


def with_modules(*modules):
    """Returns if all modules can be imported. Otherwise starts the script again in a Python that has them. If there is
    none, ends the script with an error."""
    missing = lacks(modules)
    if not missing:
        return
    script = os.path.basename(sys.argv[0])
    if "RINGTRAIN_PYTHON_TRIED" not in os.environ:
        question = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {list(modules)!r})))"
        for python in filter(None, (os.environ.get("PYTHON"), "python3", "/usr/bin/python3")):
            try:
                found = subprocess.run([python, "-c", question], stderr=subprocess.DEVNULL).returncode == 0
            except OSError:
                continue
            if found:
                os.environ["RINGTRAIN_PYTHON_TRIED"] = "1"
                sys.stdout.flush()
                os.execvp(python, [python, *sys.argv])
    sys.exit(f"{script}: error: no Python with {', '.join(missing)} was found ({sys.executable} has none); install "
             f"{' '.join('python3-' + name for name in missing)} (make setup), or set PYTHON to one that has them")
