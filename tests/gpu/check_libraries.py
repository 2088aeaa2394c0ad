"""Chooses the cuDNN that the checks use. Plans are good for one version of cuDNN only. A machine may have another version in
its system's folders than PyTorch has brought along, and programs take the system's first. If a Python package has the
version for which the kit has plans, that one is named in RINGTRAIN_CUDA_LIBRARIES, together with the other libraries of
NVIDIA beside it. Nothing is imported or started for this."""
import os
import re
from collections import namedtuple
from pathlib import Path

from background import package_folders

# Where NVIDIA's packages for CUDA 13 put their libraries: nvidia/cudnn/lib, nvidia/nccl/lib, and all others in
# nvidia/cu13/lib. Packages for CUDA 12 have a folder for each library.
NEEDED = ["libcudnn*.so*", "libcublas*.so*", "libnvrtc*.so*", "libcudart.so*", "libnvJitLink.so*", "libnccl.so*"]
VARIABLE, SUFFIX = "RINGTRAIN_CUDA_LIBRARIES", "-cudnn-"

# `version` is "" when it is not known before a program has started. `folders` are those in front of the variable.
Choice = namedtuple("Choice", "version folders line")


def plan_folder(gpu, version):
    """The name of the folder with the plans for this GPU and this cuDNN, as programs name it."""
    return re.sub(r"[^A-Za-z0-9.]", "-", f"{gpu}{SUFFIX}{version}")


def numbers(version):
    return [int(part) for part in version.split(".")]


def planned_versions(plans):
    """The versions of cuDNN for which a folder has plans, the newest first."""
    found = {folder.name.rpartition(SUFFIX)[2] for folder in Path(plans).glob(f"*{SUFFIX}*") if any(folder.glob("*.plan"))}
    return sorted((version for version in found if re.fullmatch(r"\d+\.\d+\.\d+", version)), key=numbers, reverse=True)


def version_in(folder):
    """The version of the cuDNN in a folder nvidia/*/lib: by the name of its file, its header, or its package. "" when none of
    them says it."""
    names = sorted(path.name for path in folder.glob("libcudnn.so.*.*.*"))
    if names:
        return names[-1].removeprefix("libcudnn.so.")
    for name in "cudnn_version.h", "cudnn_version_v9.h":
        header = folder.parent / "include" / name
        if header.is_file():
            parts = dict(re.findall(r"^#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", header.read_text(errors="replace"), re.M))
            if len(parts) == 3:
                return f"{parts['MAJOR']}.{parts['MINOR']}.{parts['PATCHLEVEL']}"
    for package in sorted(folder.parents[2].glob("nvidia_cudnn*.dist-info")):
        found = re.match(r"nvidia_cudnn\w*-(\d+\.\d+\.\d+)", package.name)
        if found:
            return found[1]
    return ""


def cudnns_of(packages):
    """[(version, folder)] of every cuDNN in folders of Python packages, in their order."""
    folders = [path.parent for package in packages for path in sorted(Path(package).glob("nvidia/*/lib/libcudnn.so.9"))]
    return [(version_in(folder), folder) for folder in dict.fromkeys(folders)]


def folders_beside(cudnn):
    """This cuDNN's folder, followed by those of the other libraries that it needs, of the same Python."""
    others = [folder for folder in sorted(cudnn.parents[1].glob("*/lib")) if any(any(folder.glob(pattern)) for pattern in NEEDED)]
    return list(dict.fromkeys([cudnn, *others]))


def choose(plans, packages=None, environment=os.environ):
    """Returns the Choice for plans in a folder. `packages` are folders of Python packages, those of PyTorch first."""
    if environment.get(VARIABLE):
        return Choice("", [], f"the one that {VARIABLE} names, because the caller has set it: {environment[VARIABLE]}")
    wanted = planned_versions(plans)
    if not wanted:
        return Choice("", [], "the first one that programs find, because there is no kit with plans")
    there = cudnns_of(package_folders() if packages is None else packages)
    for version in wanted:
        for found, folder in there:
            if found == version:
                return Choice(version, folders_beside(folder), f"{version} in {folder}, because the kit has plans for it")
    others = ", ".join(f"{version or 'an unknown version'} in {folder}" for version, folder in there) or "none"
    return Choice("", [], f"the first one that programs find, because the kit's plans are for {' and '.join(wanted)}, and Python's packages have {others}")


def use(choice, environment=os.environ):
    """Puts the folders in front of the variables, so that every later process uses them. A cuDNN opens its other files from its
    own folder, but a folder of LD_LIBRARY_PATH goes before that."""
    for variable in [VARIABLE, *(["LD_LIBRARY_PATH"] if environment.get("LD_LIBRARY_PATH") else [])]:
        folders = [str(folder) for folder in (choice.folders if variable == VARIABLE else choice.folders[:1])]
        if folders:
            environment[variable] = ":".join([*folders, *filter(None, [environment.get(variable)])])


def opened(text):
    """(version, folders) of the cuDNN that a program has opened, by what the gate prints."""
    version = re.search(r"^gate: cuDNN: (\S+)", text, re.M)
    folders = [str(Path(path).parent) for path in re.findall(r"^gate: library: (\S*/libcudnn[^/\s]*)$", text, re.M)]
    return version[1] if version else "", list(dict.fromkeys(folders))


def differences(choice, text):
    """Says where the program has opened another cuDNN than the chosen one, or files of two."""
    version, folders = opened(text)
    lines = []
    if choice and choice.version and version and version != choice.version:
        lines.append(f"cuDNN {choice.version} was chosen, and the program has opened {version}")
    if len(folders) > 1:
        lines.append(f"files of cuDNN come from several folders: {', '.join(folders)}")
    return lines
