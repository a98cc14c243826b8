"""Virtual environments that see what this one has, and packages of their own."""

from __future__ import annotations

import sys
import venv
from pathlib import Path


def environment_over_this(folder: Path) -> tuple[Path, Path]:
    """A virtual environment made in `folder`: its Python, and the folder of its own packages, which go first.

    What pip would have installed twice is read from here: torch alone takes gigabytes.
    """
    venv.create(folder, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    seen = [entry for entry in sys.path if "site-packages" in entry]
    lines = [f"import site; site.addsitedir({entry!r})" for entry in seen]  # with its .pth files: ours is editable
    (site / "zz_this.pth").write_text("\n".join([*lines, ""]))
    return folder / "bin" / "python", site
