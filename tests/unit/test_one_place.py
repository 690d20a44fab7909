"""A setting is added in one place: a field with its text. Parsing, checks, the reference page and the
shipped files follow from it."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sluicecommon.settings import ConfigError
from tests.kit.places import REPO

FIELD = '''
    brand_new_s: float = _number(1.5, 0.0, 2.0)
    """Seconds of something that did not exist before."""
'''
SECTION = f'''
@dataclass(frozen=True, slots=True)
class BrandNewSettings:
    """[brand_new]: a section that did not exist before."""
{FIELD}

@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration file."""

    brand_new: BrandNewSettings = field(default_factory=BrandNewSettings)
'''
WHOLE = '''
@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration file."""
'''


def loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def reference() -> Iterator[Any]:
    before = list(sys.path)
    yield loaded(REPO / "packaging" / "generate" / "reference.py", "generate_reference")
    sys.path[:] = before
    del sys.modules["generate_reference"]


@pytest.fixture(params=["nodeagent/settings/daemon.py", "queuecontroller/server/config.py"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The module of a service's settings with one section, and so one field, more."""
    text = (REPO / request.param).read_text()
    assert text.count(WHOLE) == 1
    path = tmp_path / "changed_config.py"
    path.write_text(text.replace(WHOLE, SECTION))
    yield loaded(path, "changed_config")
    del sys.modules["changed_config"]


def test_a_new_setting_is_parsed_checked_and_documented(config: Any, reference: Any) -> None:
    assert config.parse({}).brand_new.brand_new_s == 1.5
    assert config.parse({"brand_new": {"brand_new_s": 0.5}}).brand_new.brand_new_s == 0.5
    with pytest.raises(ConfigError, match=r"brand_new\.brand_new_s"):
        config.parse({"brand_new": {"brand_new_s": 3.0}})
    with pytest.raises(ConfigError, match="did you mean 'brand_new_s'"):
        config.parse({"brand_new": {"brandnew_s": 1.0}})
    page = "".join(reference._tables(config.SECTIONS))
    assert "A section that did not exist before." in page
    assert "- `brand_new_s = 1.5` (0 to 2): Seconds of something" in page
    shipped = reference.settings_toml(config.SECTIONS, "`serve`")
    assert "#brand_new_s = 1.5" in shipped
    assert config.parse(tomllib.loads(shipped)) == config.Settings()
