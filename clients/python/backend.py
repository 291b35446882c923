"""Builds the wheel and the sdist (PEP 517) with nothing but Python: pip then needs no net, although it isolates builds."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import re
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any, Dict

HERE = Path(__file__).resolve().parent
PACKAGE = {f"unlocker_mutex/{path.name}": path.read_bytes() for path in sorted((HERE / "src/unlocker_mutex").iterdir()) if path.is_file()}
LICENSE = next(path for path in (HERE / "LICENSE", HERE.parent.parent / "LICENSE") if path.exists()).read_bytes()
VERSION = re.search(r'^__version__ = "(.*)"$', PACKAGE["unlocker_mutex/__init__.py"].decode(), re.M)[1]  # type: ignore[index]
TIME = max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)  # the first that a zip archive can have
REPOSITORY = "https://github.com/etcd-unlocker/unlocker"
README = (HERE / "README.md").read_text("utf-8").replace("](../../", f"]({REPOSITORY}/blob/main/")
METADATA = f"""\
Metadata-Version: 2.1
Name: unlocker-mutex
Version: {VERSION}
Summary: Locks in etcd that are removed when their holder dies: a client of unlocker, of the standard library only
Author: The unlocker authors
License: Apache-2.0
License-File: LICENSE
Project-URL: Homepage, {REPOSITORY}
Project-URL: Changelog, {REPOSITORY}/blob/main/CHANGELOG.md
Keywords: etcd,lock,mutex,distributed
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Programming Language :: Python :: 3
Classifier: Framework :: AsyncIO
Classifier: Typing :: Typed
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{README}""".encode()


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """Writes the wheel, and returns its name. The same sources and SOURCE_DATE_EPOCH give the same bytes."""
    info = f"unlocker_mutex-{VERSION}.dist-info"
    wheel = b"Wheel-Version: 1.0\nGenerator: unlocker\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files: Dict[str, bytes] = {**PACKAGE, f"{info}/LICENSE": LICENSE, f"{info}/METADATA": METADATA, f"{info}/WHEEL": wheel}
    hashes = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=") for name, data in files.items()}
    record = "".join(f"{name},sha256={hashes[name]},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"unlocker_mutex-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, time.gmtime(TIME)[:6])
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return name


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Writes the source distribution, and returns its name."""
    root = f"unlocker_mutex-{VERSION}"
    files = {f"src/{name}": data for name, data in PACKAGE.items()}
    files.update({name: (HERE / name).read_bytes() for name in ("README.md", "backend.py", "pyproject.toml")}, LICENSE=LICENSE)
    tar = io.BytesIO()
    with tarfile.open(mode="w", fileobj=tar, format=tarfile.PAX_FORMAT) as archive:
        for name, data in {**files, "PKG-INFO": METADATA}.items():
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mtime = len(data), TIME
            archive.addfile(entry, io.BytesIO(data))
    Path(sdist_directory, f"{root}.tar.gz").write_bytes(gzip.compress(tar.getvalue(), mtime=TIME))
    return f"{root}.tar.gz"
