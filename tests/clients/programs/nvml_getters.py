"""nvidia-ml-py: every getter that there is, asked with what it needs. Prints how many answered, and what each other one said.

A getter may refuse (not supported here, no such thing); the library may not lack it, and the program may not die.
"""

from __future__ import annotations

import collections
import inspect
import json

import pynvml

SKIPPED = ("nvmlEventSetWait", "nvmlSystemEventSetWait")
"""They wait."""


def main() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    told: dict[str, list[str]] = collections.defaultdict(list)
    for name, function in sorted(inspect.getmembers(pynvml, inspect.isfunction)):
        if not name.startswith("nvml") or name.startswith(SKIPPED):
            continue
        if "Get" not in name and "Query" not in name:
            continue
        wanted = [
            handle if parameter.name in ("handle", "device", "device1", "device2") else 0
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
        ]
        try:
            function(*wanted)
            told["answered"].append(name)
        except pynvml.NVMLError as error:
            told[type(error).__name__].append(name)
        except (TypeError, AttributeError):
            told["wants more than a handle"].append(name)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    print(
        json.dumps(
            {
                "total_bytes": memory.total,
                "devices": pynvml.nvmlDeviceGetCount(),
                "answers": {kind: len(names) for kind, names in told.items()},
                "missing": told.get("NVMLError_FunctionNotFound", []),
                "processes": [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)],
            }
        )
    )


main()
