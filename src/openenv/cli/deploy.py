"""`openenv deploy`: servers that run until they are deleted."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from ..errors import UsageError
from ..providers.redaction import KEYS, key_of
from ..providers.spec import LaunchSpec, Resources
from .terminal import PATH, variable

if TYPE_CHECKING:
    from ..providers.kubernetes.deployment_rollout import DeploymentRollout


TIMEOUT_S = 600.0
VIEW_KEY = "OPENENV_VIEW_KEY"
"""Field of the Secret with the API key for read-only clients."""
# Fields of a file in addition to those of a LaunchSpec.
_MORE = {"max_replicas", "sessions"}
# The fields of a file that are checked here.
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("env_vars", "resources", "options"), ((dict,), "names with their values")),
    **dict.fromkeys(("replicas", "port", *_MORE), ((int,), "a whole number")),
    **dict.fromkeys(("name", "api_key"), ((str,), "a text")),
}
_AMOUNTS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "cpus": ((int, float), "a number, as 2 or 0.5"),
    "memory": ((int, str), "bytes or a size, as 512m or 2g"),
    **dict.fromkeys(("gpus", "processes"), ((int,), "a whole number")),
}


@click.group(name="deploy")
def deploy() -> None:
    """Deploys servers to a cluster, where they run until they are deleted.

    \b
    Examples:
      openenv deploy kubernetes my-env:1 --replicas 4 -n training
    """


@deploy.command(short_help="Put servers on a Kubernetes cluster, or print the manifests.")
@click.argument("what", metavar="IMAGE|FILE")
@click.option("--name", help="Name of all created objects; by default the image's.")
@click.option("--replicas", type=int, help="Number of servers; with --max-replicas, the minimum. [default: 1]")
@click.option("--max-replicas", type=int, help="Maximum number of servers; they scale with the number of sessions.")
@click.option(
    "--sessions", type=int, help="With --max-replicas: average sessions per server to scale for. [default: 64]"
)
@click.option("--port", type=int, help="Port that the image's server listens on. [default: 8000]")
@click.option("--cpus", type=float, help="CPUs that each server may use.")
@click.option("--memory", help="Memory that each server may use, e.g. 512m or 2g.")
@click.option("--gpus", type=int, help="GPUs of each server.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable; NAME alone takes the value of this shell: use it for secrets.",
)
@click.option("--runtime-class", help="RuntimeClass of the Pods, e.g. gvisor.")
@click.option("--prepull", is_flag=True, default=None, help="Keep the image on every node.")
@click.option("--egress", is_flag=True, default=None, help="Allow outgoing connections of the servers.")
@click.option(
    "--option", "more", multiple=True, metavar="NAME=YAML", help="Any other option: see docs/kubernetes.md."
)
@click.option("-n", "--namespace", help="Namespace; by default that of the kubeconfig context.")
@click.option("--create-namespace", is_flag=True, help="Also create the namespace.")
@click.option("--kubeconfig", type=PATH, help="Kubeconfig file of the cluster. [KUBECONFIG]")
@click.option("--context", help="Context in the kubeconfig file.")
@click.option("--dry-run", is_flag=True, help="Print the manifests without contacting a cluster.")
@click.option("-o", "--output", type=PATH, help="With --dry-run: folder for a kustomize base.")
@click.option("--show-secrets", is_flag=True, help="With --dry-run: include the Secret.")
@click.option("--wait/--no-wait", default=True, help="Whether to wait until all servers are ready. [default: wait]")
@click.option("--timeout", type=float, default=TIMEOUT_S, help=f"Maximum seconds to wait. [default: {TIMEOUT_S:g}]")
def kubernetes(
    what: str,
    namespace: str | None,
    create_namespace: bool,
    kubeconfig: Path | None,
    context: str | None,
    dry_run: bool,
    output: Path | None,
    show_secrets: bool,
    wait: bool,
    timeout: float,
    **given: Any,
) -> None:
    """Deploys servers of IMAGE to a Kubernetes cluster: a Deployment, two Services, a Secret with their variables, a
    NetworkPolicy, a PodDisruptionBudget, and with --max-replicas a HorizontalPodAutoscaler. A repeated call updates
    the objects that differ. FILE is YAML with the fields of a LaunchSpec; options on the command line override it.

    \b
    Examples:
      openenv deploy kubernetes my-env:1 --replicas 4 --memory 2g -n training
      openenv deploy kubernetes my-env:1 --dry-run | kubectl diff -f -
      openenv deploy kubernetes my-env:1 --dry-run -o my-env/base
    """
    if create_namespace and namespace is None:
        raise UsageError("--create-namespace needs --namespace NAME")
    if not dry_run and (output is not None or show_secrets):
        raise UsageError("--output and --show-secrets need --dry-run")
    rollout = _rollout(_specification(what, given), namespace if create_namespace else None)
    if not dry_run:
        asyncio.run(_deploy(rollout, namespace, kubeconfig, context, timeout if wait else None))
    elif output is None:
        texts = "---\n".join(map(_dumped, _named(rollout, namespace, show_secrets)))
        click.echo(f"{'' if show_secrets else _about_secret(rollout)}---\n{texts}", nl=False)
    else:
        try:
            _write_base(rollout, namespace, output, show_secrets)
        except OSError as error:
            raise UsageError(f"--output {output} cannot be written to: {error}") from None


def _specification(what: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The file and the command line as fields of a LaunchSpec."""
    found: Any = {"image": what}
    if what.endswith((".yaml", ".yml")):
        try:
            found = yaml.safe_load(Path(what).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise UsageError(f"{what} cannot be read: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("image"), str):
            raise UsageError(f"{what} must have fields of a LaunchSpec, and `image` among them")
        unknown = found.keys() - {*LaunchSpec.__dataclass_fields__, *_MORE}
        if unknown:
            raise UsageError(f"{what}: a LaunchSpec has no field {', '.join(sorted(map(str, unknown)))}")
        _check_kinds(f"{what}: ", found, _KINDS)
        amounts = found.get("resources", {})
        if amounts.keys() - _AMOUNTS.keys():
            raise UsageError(f"{what}: resources has {', '.join(_AMOUNTS)}, got {', '.join(map(str, amounts))}")
        _check_kinds(f"{what}: resources: ", amounts, _AMOUNTS)

    def chosen(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in names if given[name] is not None}

    found |= chosen("name", "replicas", "port", "max_replicas", "sessions")
    found["resources"] = {**found.get("resources", {}), **chosen("cpus", "memory", "gpus")}
    texts = {str(name): str(value) for name, value in found.get("env_vars", {}).items()}
    found["env_vars"] = {**texts, **dict(map(variable, given["env"]))}
    options = {**found.get("options", {}), **chosen("runtime_class", "prepull", "egress")}
    found["options"] = {**options, **dict(map(_option, given["more"]))}
    fields: dict[str, Any] = found
    return fields


def _check_kinds(where: str, found: Mapping[str, Any], kinds: Mapping[str, tuple[tuple[type, ...], str]]) -> None:
    for name, (allowed, words) in kinds.items():
        value = found.get(name)
        if name in found and (not isinstance(value, allowed) or isinstance(value, bool)):
            raise UsageError(f"{where}{name} must be {words}, got {value!r}")


def _option(text: str) -> tuple[str, Any]:
    name, given, value = text.partition("=")
    if not given:
        raise UsageError(f"--option {text}: write NAME=YAML, as in --option 'node_selector={{pool: envs}}'")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--option {name}: {error}") from None


def _rollout(fields: dict[str, Any], namespace: str | None) -> DeploymentRollout:
    from ..providers.kubernetes import KubernetesProvider
    from ..providers.kubernetes.deployment_rollout import DeploymentRollout, labels_of, selector_of
    from ..providers.kubernetes.manifests import PodWorkload

    most, sessions = fields.pop("max_replicas", None), fields.pop("sessions", 64)
    try:
        spec = LaunchSpec(**{**fields, "resources": Resources(**fields["resources"])})
    except TypeError as error:
        raise UsageError(f"the LaunchSpec of the deployment is invalid: {error}") from None
    KubernetesProvider.capabilities.check("Kubernetes", spec)
    word = spec.name or str(spec.image).rpartition("/")[2].partition("@")[0].partition(":")[0]
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in word.lower()).strip("-")
    if not name or len(name) > 50 or not name[0].isalpha():
        raise UsageError(
            f"no name can be derived from {word!r}: give --name, at most 50 letters, "
            "digits and '-', beginning with a letter"
        )
    made = {}
    if spec.api_key is None and KEYS not in spec.env_vars:
        # One key for clients, and one that only reads /metrics, which is also stored alone: for Prometheus.
        control, view = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        made = {KEYS: f"control:{control},view:{view}", VIEW_KEY: view}
    variables = {**made, **spec.env_vars}
    if spec.api_key is not None:
        variables[KEYS] = f"control:{spec.api_key}" if spec.api_key else "none"
    return DeploymentRollout(
        workload=PodWorkload.of(spec, name, selector_of(name), labels_of(name), variables),
        replicas=spec.count,
        most=most,
        sessions=sessions,
        namespace=namespace,
        made=frozenset(made),
    )


def _named(rollout: DeploymentRollout, namespace: str | None, show_secrets: bool) -> list[dict[str, Any]]:
    """The manifests to print."""
    found = [each for each in rollout.manifests if show_secrets or each["kind"] != "Secret"]
    for each in found:
        if namespace is not None and each["kind"] != "Namespace":
            each["metadata"] = {"name": each["metadata"]["name"], "namespace": namespace, **each["metadata"]}
    return found


def _about_secret(rollout: DeploymentRollout) -> str:
    variables = ", ".join(sorted(rollout.workload.variables))
    return (
        f"# Left out, since it holds the key: Secret {rollout.workload.name} with {variables}.\n"
        f"# --show-secrets prints it; or make it: kubectl create secret generic {rollout.workload.name} "
        "--from-env-file=FILE\n"
    )


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors and aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dumped(manifest: Mapping[str, Any]) -> str:
    dumped: str = yaml.dump(dict(manifest), Dumper=_Plain, sort_keys=False, width=100)
    return dumped


def _write_base(rollout: DeploymentRollout, namespace: str | None, folder: Path, show_secrets: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for each in _named(rollout, None, show_secrets):
        name = each["kind"].lower()
        names.append(f"{name}.yaml" if f"{name}.yaml" not in names else f"{name}-servers.yaml")
        file = folder / names[-1]
        if each["kind"] == "Secret":
            file.touch(mode=0o600)
            file.chmod(0o600)  # it existed before
        file.write_text(_dumped(each), encoding="utf-8")
    base: dict[str, Any] = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    if namespace is not None:
        base["namespace"] = namespace
    text = ("" if show_secrets else _about_secret(rollout)) + _dumped({**base, "resources": names})
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
    click.echo(f"{len(names) + 1} files in {folder}: kubectl apply -k {folder}")


async def _deploy(
    rollout: DeploymentRollout,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    timeout_s: float | None,
) -> None:
    from ..providers.kubernetes.api import KubernetesCluster

    cluster = KubernetesCluster(namespace, kubeconfig, context)
    try:
        rollout = await rollout.kept(cluster)
        await rollout.apply(cluster, timeout_s)
        where = await cluster.namespace()
    finally:
        await cluster.aclose()
    name, port = rollout.workload.name, rollout.workload.port
    click.echo(f"{name} is at http://{name}.{where}.svc:{port} within the cluster; from here:")
    click.echo(f"  kubectl -n {where} port-forward service/{name} {port}")
    if key_of(rollout.workload.variables) is not None:
        path = f"{{.data.{KEYS}}}"
        click.echo("the API key, of scope control, is in its Secret:")
        click.echo(f"  kubectl -n {where} get secret {name} -o jsonpath='{path}' | base64 -d")
