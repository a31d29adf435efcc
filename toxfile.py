"""Lets tox find the Pythons that pyenv keeps: its shims answer only for the version chosen in the folder."""

import os
from pathlib import Path

from tox.plugin import impl


@impl
def tox_register_tox_env(register: object) -> None:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(str(path) for path in root.glob("versions/3.*/bin") if path.is_dir())
    present = os.environ.get("PATH", "").split(os.pathsep)
    # In front of the shims: a shim that answers "not this version" would end the search.
    os.environ["PATH"] = os.pathsep.join([*[path for path in kept if path not in present], *present])
