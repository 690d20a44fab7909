"""Each folder of examples/ is applied to a running service, and the README there names each file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.queue.controller import SLUICE_QUEUE, QueueController
from tests.queue.manifests.collected import FOLDER, SETS

README = (FOLDER / "README.md").read_text(encoding="utf-8")
PASSED_OVER = {"from-hami", "from-kai", "gangs", "new-nodes", "numa"}
"""Their ConfigMaps, Pods and PodGroups are no objects of the queue."""


@pytest.mark.parametrize("folder", SETS, ids=lambda path: path.name)
def test_a_folder_is_applied_and_applied_again(tmp_path: Path, folder: Path) -> None:
    controller = QueueController(tmp_path)
    controller.start()
    try:
        for time in ("first", "second"):
            done = subprocess.run(
                [SLUICE_QUEUE, "apply", "-f", folder, "--server", controller.address],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            created = any(line.endswith(" created") for line in done.stdout.splitlines())
            assert created is (time == "first" and folder.name not in PASSED_OVER)
    finally:
        controller.stop()


def test_the_readme_names_each_file_and_no_other() -> None:
    in_folders = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.yaml")}
    assert set(re.findall(r"\]\(([^)]+\.yaml)\)", README)) == in_folders
