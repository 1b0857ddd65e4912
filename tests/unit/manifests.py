"""The Kubernetes manifests as `kubectl apply -k` would send them, and what KEDA's objects may contain."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
#: folders that are applied: all of them are rendered
APPLIED = ("base", "production", "pool")

Manifest = dict[str, Any]

_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0}
#: KEDA reads the metadata of triggers as text, numbers too
_NUMBER_AS_TEXT = {"type": "string", "pattern": r"^\d+(\.\d+)?$"}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required.split(),
    }


_LABELS = {"type": "object", "additionalProperties": _TEXT}
_METADATA = _object("name", name=_TEXT, namespace=_TEXT, labels=_LABELS)
_BEHAVIOUR = _object(
    stabilizationWindowSeconds=_COUNT,
    policies={
        "type": "array",
        "items": _object(
            "type value periodSeconds", type={"enum": ["Percent", "Pods"]}, value=_COUNT, periodSeconds=_COUNT
        ),
    },
)
_TRIGGER = _object(
    "type metadata authenticationRef",
    type={"const": "postgresql"},
    metadata=_object(
        "query targetQueryValue",
        query=_TEXT,
        targetQueryValue=_NUMBER_AS_TEXT,
        activationTargetQueryValue=_NUMBER_AS_TEXT,
    ),
    authenticationRef=_object("name", name=_TEXT),
)
#: the fields of keda.sh/v1alpha1 that are used here, by kind
KEDA = {
    "ScaledObject": _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind=_TEXT,
        metadata=_METADATA,
        spec=_object(
            "scaleTargetRef triggers",
            scaleTargetRef=_object("name", name=_TEXT),
            minReplicaCount=_COUNT,
            maxReplicaCount={"type": "integer", "minimum": 1},
            pollingInterval=_COUNT,
            cooldownPeriod=_COUNT,
            fallback=_object("failureThreshold replicas", failureThreshold=_COUNT, replicas=_COUNT),
            advanced=_object(
                horizontalPodAutoscalerConfig=_object(behavior=_object(scaleDown=_BEHAVIOUR, scaleUp=_BEHAVIOUR))
            ),
            triggers={"type": "array", "minItems": 1, "items": _TRIGGER},
        ),
    ),
    "TriggerAuthentication": _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind=_TEXT,
        metadata=_METADATA,
        spec=_object(
            "secretTargetRef",
            secretTargetRef={
                "type": "array",
                "items": _object("parameter name key", parameter={"const": "connection"}, name=_TEXT, key=_TEXT),
            },
        ),
    ),
}


def files() -> Iterator[tuple[Path, Manifest]]:
    """Every document of every file of manifests, unrendered; not those of kustomize itself."""
    for file in sorted(KUBERNETES.rglob("*.yaml")):
        if file.name != "kustomization.yaml":
            for document in yaml.safe_load_all(file.read_text()):
                yield file, document


@cache
def rendered(folder: str) -> list[Manifest]:
    """What is applied with ``kubectl apply -k``; the test is skipped where neither kubectl nor kustomize is."""
    if kubectl := shutil.which("kubectl"):
        command = [kubectl, "kustomize"]
    elif kustomize := shutil.which("kustomize"):
        command = [kustomize, "build"]
    else:
        pytest.skip("renders with kubectl or kustomize, and neither is on the PATH")
    done = subprocess.run([*command, str(KUBERNETES / folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Name and pod template of everything that runs."""
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]
