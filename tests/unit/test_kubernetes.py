"""The manifests: they render, fit the schemas, and speak of commands, settings, ports and keys that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from command_line import unknown
from manifests import APPLIED, KEDA, KUBERNETES, Manifest, files, pods, rendered

from noetl_celery.settings import BODY_QUEUE, CONTROL_QUEUE, Settings

#: the oldest version of Kubernetes that they are checked for, and a recent one
VERSIONS = ("1.27", "1.33")
SETTINGS = {f"NOETL_{name.upper()}" for name in Settings.model_fields}
SECRETS = {
    document["metadata"]["name"]: set(document["stringData"]) for file, document in files() if "secret" in file.name
}


@pytest.fixture(scope="module", params=APPLIED)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return rendered(request.param)


@pytest.fixture(scope="module", params=["kubectl", "files"])
def everything(request: pytest.FixtureRequest) -> list[Manifest]:
    """Rendered where that is possible, and in any case as the files have it."""
    return rendered("production") if request.param == "kubectl" else [document for _, document in files()]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def check(manifest: Manifest, version: str) -> None:
    """Raises if it is not what Kubernetes, or KEDA, takes."""
    if manifest["kind"] in KEDA:
        jsonschema.validate(manifest, KEDA[manifest["kind"]])
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_applied_fits_the_schemas(manifests: list[Manifest], version: str) -> None:
    assert manifests
    for manifest in manifests:
        check(manifest, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_file_fits_the_schemas(version: str) -> None:
    for _, manifest in files():
        check(manifest, version)


def test_the_schemas_refuse_what_is_misspelt() -> None:
    for _, manifest in files():
        if "spec" in manifest:
            wrong = manifest | {"spec": manifest["spec"] | {"replicsa": 2}}
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                check(wrong, VERSIONS[0])


def test_pods_have_no_rights_that_they_do_not_need(everything: list[Manifest]) -> None:
    for name, template in pods(everything):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name


def test_variables_are_settings_and_keys_are_in_the_example(everything: list[Manifest]) -> None:
    assert SECRETS.keys() == {"noetl", "noetl-keda"}
    for name, template in pods(everything):
        for variable in template["spec"]["containers"][0]["env"]:
            if secret := variable["valueFrom"].get("secretKeyRef"):
                assert variable["name"] in SETTINGS, name
                assert secret["key"] in SECRETS[secret["name"]], name
    for manifest in of_kind(everything, "TriggerAuthentication").values():
        for reference in manifest["spec"]["secretTargetRef"]:
            assert reference["key"] in SECRETS[reference["name"]]


def test_only_the_console_knows_its_token(everything: list[Manifest]) -> None:
    knows = {name for name, template in pods(everything) if "console-token" in str(template)}
    assert knows == {"noetl-console"}


def test_values_of_the_config_map_are_settings(manifests: list[Manifest]) -> None:
    [config] = of_kind(manifests, "ConfigMap").values()
    assert config["data"].keys() <= SETTINGS
    values = {name.removeprefix("NOETL_").lower(): value for name, value in config["data"].items()}
    settings = Settings(**values)
    for name, template in pods(manifests):
        grace = template["spec"].get("terminationGracePeriodSeconds")
        if name not in ("noetl-migrate", "noetl-console"):
            assert grace > settings.grace_seconds + 10, name
        used = re.findall(r"\$\((\w+)\)", str(template["spec"]["containers"][0]))
        assert set(used) <= config["data"].keys() | {"POD_NAME"}, name


def test_references_lead_to_what_is_applied(manifests: list[Manifest]) -> None:
    for name, template in pods(manifests):
        pod = template["spec"]
        assert pod["serviceAccountName"] in of_kind(manifests, "ServiceAccount"), name
        for source in pod["containers"][0].get("envFrom", []):
            assert source["configMapRef"]["name"] in of_kind(manifests, "ConfigMap"), name
    for name, scaled in of_kind(manifests, "ScaledObject").items():
        assert scaled["spec"]["scaleTargetRef"]["name"] in of_kind(manifests, "Deployment"), name
        for trigger in scaled["spec"]["triggers"]:
            assert trigger["authenticationRef"]["name"] in of_kind(manifests, "TriggerAuthentication"), name


def test_commands_exist(everything: list[Manifest]) -> None:
    celery = set()
    for name, template in pods(everything):
        container = template["spec"]["containers"][0]
        if "command" in container:
            assert container["command"][:4] == ["celery", "-A", "noetl_celery", "worker"], name
            celery |= {word for word in container["command"][4:] + container["args"] if word.startswith("-")}
            continue
        assert unknown(container["args"]) == set(), name
    shown = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "noetl_celery", "worker", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert celery
    assert [option for option in celery if not re.search(rf"(?<!\S){option}\b", shown.stdout)] == []


def queue_of(template: Manifest) -> str:
    args = template["spec"]["containers"][0]["args"]
    return str(args[args.index("-Q") + 1])


def test_queues_are_served_and_pools_are_named() -> None:
    manifests = rendered("pool")
    served = {name: queue_of(template) for name, template in pods(manifests) if "-Q" in str(template)}
    assert served == {
        "noetl-control": CONTROL_QUEUE,
        "noetl-bodies": BODY_QUEUE,
        "noetl-gpu": f"{BODY_QUEUE}.gpu",
    }
    [config] = of_kind(manifests, "ConfigMap").values()
    assert config["data"]["NOETL_POOLS"] == "gpu"


def test_ports_and_probes_lead_to_the_console(everything: list[Manifest]) -> None:
    console = dict(pods(everything))["noetl-console"]
    [container] = console["spec"]["containers"]
    [port] = container["ports"]
    assert str(port["containerPort"]) == container["args"][container["args"].index("--port") + 1]
    service = of_kind(everything, "Service")["noetl-console"]["spec"]
    assert service["ports"][0]["targetPort"] == port["name"]
    assert service["selector"].items() <= console["metadata"]["labels"].items()
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    policy = of_kind(everything, "NetworkPolicy")["noetl-console"]["spec"]
    [rule] = policy["ingress"]
    assert rule["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}]


def test_metrics_are_where_prometheus_looks_for_them(manifests: list[Manifest]) -> None:
    [config] = of_kind(manifests, "ConfigMap").values()
    port = config["data"]["NOETL_METRICS_PORT"]
    [rule] = of_kind(manifests, "NetworkPolicy")["noetl-metrics"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": int(port), "protocol": "TCP"}]
    for name, template in pods(manifests):
        if "-Q" in str(template):
            assert template["metadata"]["annotations"]["prometheus.io/port"] == port, name
            assert template["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": int(port)}], name


def test_a_console_that_believes_a_proxy_is_reached_by_that_proxy_only(manifests: list[Manifest]) -> None:
    [container] = dict(pods(manifests))["noetl-console"]["spec"]["containers"]
    [rule] = of_kind(manifests, "NetworkPolicy")["noetl-console"]["spec"]["ingress"]
    assert ("--behind-proxy" in container["args"]) == ("from" in rule)


def test_selectors_find_their_own_pods_only() -> None:
    manifests = rendered("pool")
    labels = {name: template["metadata"]["labels"] for name, template in pods(manifests)}

    def found(selector: dict[str, str]) -> list[str]:
        return [name for name, own in labels.items() if selector.items() <= own.items()]

    for name, deployment in of_kind(manifests, "Deployment").items():
        assert found(deployment["spec"]["selector"]["matchLabels"]) == [name]
    for name, budget in of_kind(manifests, "PodDisruptionBudget").items():
        assert found(budget["spec"]["selector"]["matchLabels"]) == [name]
    policies = of_kind(manifests, "NetworkPolicy")
    assert found(policies["noetl"]["spec"]["podSelector"]["matchLabels"]) == list(labels)


def test_what_keda_scales_has_no_number_of_its_own() -> None:
    manifests = rendered("pool")
    deployments = of_kind(manifests, "Deployment")
    scaled = of_kind(manifests, "ScaledObject")
    assert scaled.keys() == {"noetl-bodies", "noetl-gpu"}
    for name, manifest in scaled.items():
        assert manifest["spec"]["scaleTargetRef"]["name"] == name
        assert "replicas" not in deployments[name]["spec"]
        [trigger] = manifest["spec"]["triggers"]
        assert f"'{queue_of(deployments[name]['spec']['template'])}'" in trigger["metadata"]["query"]
        assert f"'{name}-%'" in trigger["metadata"]["query"]


def test_keda_counts_lanes_by_the_processes_of_a_pod() -> None:
    manifests = rendered("pool")
    [config] = of_kind(manifests, "ConfigMap").values()
    for name, manifest in of_kind(manifests, "ScaledObject").items():
        args = of_kind(manifests, "Deployment")[name]["spec"]["template"]["spec"]["containers"][0]["args"]
        processes = args[args.index("-c") + 1].replace(
            "$(NOETL_BODY_CONCURRENCY)", config["data"]["NOETL_BODY_CONCURRENCY"]
        )
        assert manifest["spec"]["triggers"][0]["metadata"]["targetQueryValue"] == processes


def test_every_folder_is_applied_or_part_of_one() -> None:
    used: set[Any] = set()
    for file in KUBERNETES.rglob("kustomization.yaml"):
        listed = yaml.safe_load(file.read_text())
        for name in listed.get("resources", []) + listed.get("components", []):
            path = (file.parent / name).resolve()
            assert path.exists(), f"{file}: {name}"
            used.add(path)
    for file in KUBERNETES.rglob("*.yaml"):
        listed = file.name == "kustomization.yaml" or file in used or "example" in file.name
        assert listed, f"{file} is in no kustomization"
