"""A missing extra is installed from the origin of this copy, and never by a name from an index."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from paygw_batch import extras
from paygw_batch.extras import IMAGE, install_command

WHEEL = {"url": "file:///srv/the%20wheels/paygw_batch-0.1.0-py3-none-any.whl", "archive_info": {}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///srv/paygw", "dir_info": {"editable": True}}, "pip install --editable '/srv/paygw[aws]'"),
        ({"url": "file:///srv/paygw", "dir_info": {}}, "pip install '/srv/paygw[aws]'"),
        (WHEEL, "pip install '/srv/the wheels/paygw_batch-0.1.0-py3-none-any.whl[aws]'"),
        (None, "pip install 'paygw_batch-0.1.0-py3-none-any.whl[aws]'"),
    ],
)
def test_install_command_uses_original_path(origin: object, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IMAGE, raising=False)
    text = None if origin is None else json.dumps(origin)
    installed = SimpleNamespace(version="0.1.0", read_text=lambda _: text)
    monkeypatch.setattr(extras, "distribution", lambda _: installed)
    assert install_command("aws") == command


def test_install_command_names_image_or_existing_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMAGE, "1")
    assert install_command("aws") == "docker build -t paygw-batch ."
    monkeypatch.delenv(IMAGE, raising=False)
    _, path, _ = install_command("excel").split("'")
    assert Path(path.removesuffix("[excel]")).exists()
