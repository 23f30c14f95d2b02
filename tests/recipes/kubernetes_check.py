"""python kubernetes_check.py: checks a PyTorchJob in YAML on the standard input.

Writes the job as JSON. Status 1 and one line an error: our schema of PyTorchJob, and for the pod
templates the strict ones of Kubernetes that kubernetes-validate has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

SCHEMA = Path(__file__).with_name("pytorchjob.schema.json")
KUBERNETES = "1.37"


def errors(job: Any) -> Iterator[str]:
    """Nothing for a good job."""
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    found = sorted(jsonschema.Draft202012Validator(schema).iter_errors(job), key=str)
    yield from (f"{error.json_path}: {error.message}" for error in found)
    if found:
        return
    for name, replicas in job["spec"]["pytorchReplicaSpecs"].items():
        template = {"apiVersion": "v1", "kind": "PodTemplate", "template": replicas["template"]}
        try:
            kubernetes_validate.validate(template, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
            continue
        spec = replicas["template"]["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        mounts = [m["name"] for c in spec["containers"] for m in c.get("volumeMounts", [])]
        yield from (f"{name}: no volume {m!r}" for m in mounts if m not in volumes)


def main() -> int:
    job = yaml.safe_load(sys.stdin)
    found = list(errors(job))
    print("\n".join(found) if found else json.dumps(job))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
