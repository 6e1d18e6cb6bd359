"""Variables of the environment that no list of ours knows: their names, and digests that say whether they are equal."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from dpcompare.backends.description import NAMES, PREFIXES, SET_BY_US, WITHOUT_EFFECT
from dpcompare.config.frameworks import FRAMEWORKS
from dpcompare.system.secrets import is_secret

KEY_FILE = "environment.key"
"""Holds the key of the digests, in a study's directory and in that of each run; readable by its owner alone."""
FOLDERS_ABOVE = 3
"""How far above the directory of a run that of its study is."""
DIGITS = 8
"""Hexadecimal digits of a digest: enough to tell values apart, too few to give one back."""

HARMLESS_NAMES = frozenset({
    # Terminals, shells and desktops: a study may be continued from another one.
    *("APPDIR", "APPIMAGE", "CHROME_DESKTOP", "DEBUGINFOD_URLS", "HOSTTYPE", "LOADEDMODULES", "LSCOLORS", "MACHTYPE"),
    *("MODULEPATH", "MOTD_SHOWN", "MPLBACKEND", "OSTYPE", "_LMFILES_"),
    *("_", "COLORFGBG", "COLORTERM", "COLUMNS", "CLICOLOR", "CLICOLOR_FORCE", "DESKTOP_SESSION", "DISPLAY"),
    *("EDITOR", "FORCE_COLOR", "HOST", "HOSTNAME", "IFS", "INSIDE_EMACS", "LANG", "LANGUAGE", "LESS", "LESSCLOSE"),
    *("LESSOPEN", "LINES", "LOGNAME", "LS_COLORS", "MAIL", "MANPATH", "NO_COLOR", "OLDPWD", "PAGER", "PATH"),
    *("PROMPT", "PROMPT_COMMAND", "PS1", "PS2", "PS4", "PWD", "SESSION_MANAGER", "SHELL", "SHLVL", "STY", "TZ"),
    *("USER", "USERNAME", "VISUAL", "WAYLAND_DISPLAY", "WINDOW", "WINDOWID", "WINDOWPATH", "XAUTHORITY", "ZDOTDIR"),
    # Folders, and what Python writes.
    *("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHON_COLORS", "TEMP", "TMP", "TMPDIR"),
    # Services and jobs.
    *("CI", "INVOCATION_ID", "JOB_ID", "JOURNAL_STREAM", "MAKEFLAGS", "MAKELEVEL", "MANAGERPID", "MFLAGS"),
    *("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "NVIDIA_VISIBLE_DEVICES"),
    *("JOB_COMPLETION_INDEX", "JOB_NAME", "KRB5CCNAME", "NQUEUES", "NSLOTS", "PE_HOSTFILE", "QUEUE"),
    # Each process of a run has its own: its place, its devices and its network, which other rows compare.
    *("GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "GROUP_WORLD_SIZE", "NPROC", "ROLE_NAME", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE",),
    *(name for row in FRAMEWORKS.values() for name in row.rendezvous_variables),
    *SET_BY_US,
    *WITHOUT_EFFECT,
})  # fmt: skip
HARMLESS_PREFIXES = (
    *("FLUX_", "LSF_", "LS_", "PET_", "RAY_", "SGE_", "_CONDOR_"),
    *("ELECTRON_", "GIO_", "GJS_", "GSETTINGS_", "GSM_", "IPYTHON", "LMOD", "PYDEVD_", "SNAP"),
    *("ALACRITTY_", "BASH", "BUILD_", "CONDA", "DBUS_", "DPCOMPARE_", "FISH_", "GDM", "GHOSTTY_", "GIT_", "GITHUB_"),
    *("GITLAB_", "GNOME_", "GPG_", "GTK_", "HIST", "ITERM_", "JENKINS_", "JPY_", "JUPYTER", "KDE_", "KITTY_"),
    *("KONSOLE_", "KUBERNETES_", "LC_", "LSB_", "NVM_", "OMPI_", "PBS_", "PIP_", "PMIX_", "PMI_", "PYTEST_", "QT_"),
    *("RUNNER_", "SLURM", "SSH_", "SUDO_", "SYSTEMD_", "TERM", "TMUX", "TORCHELASTIC_", "UV_", "VIRTUAL_ENV"),
    *("VSCODE_", "VTE_", "WEZTERM_", "WSL", "WT_", "XDG_", "XMODIFIERS", "ZSH"),
)
_SERVICE = re.compile(r"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)\w*)?)")
"""What Kubernetes sets in every container for each service of its namespace."""


def other_variables(environ: Mapping[str, str], key: str) -> dict[str, str]:
    """Name -> digest of its value, of the variables of an environment that no list knows; no value is recorded.

    What looks like a secret is left out altogether: a token that is renewed is another one every day.

    Args:
        environ: name -> value.
        key: of the study, or of the run where it is alone.
    """
    names = [name for name in sorted(environ) if not _is_known(name) and not is_secret(name, environ[name])]
    return {name: digest(key, f"{name}={environ[name]}") for name in names}


def _is_known(name: str) -> bool:
    """Whether it is harmless, or its value is recorded: see `dpcompare.backends.description`."""
    return (
        name in HARMLESS_NAMES
        or name in NAMES
        or name.startswith((*HARMLESS_PREFIXES, *PREFIXES))
        or _SERVICE.fullmatch(name) is not None
    )


def digest(key: str, text: str) -> str:
    """A digest that cannot be looked up without the key."""
    return hmac.new(key.encode(), text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()[:DIGITS]


def make_key(folder: Path) -> None:
    """Write the key of a directory, unless it has one: that of the study that it is in, or a new one."""
    path = folder / KEY_FILE
    if path.exists():
        return
    above = [parent / KEY_FILE for parent in folder.absolute().parents[:FOLDERS_ABOVE]]
    key = next((text for file in above if (text := read_key(file))), None) or secrets.token_hex(32)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key)


def read_key(path: Path) -> str | None:
    """The key in a file; None where there is none that may be read."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
