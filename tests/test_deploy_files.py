"""The files of deploy/ parse, and name files, commands, options, extras and settings that exist."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from checks.image_check import read_dockerfile
from stretto.cli.commands import app
from stretto.schema.tables import Tables

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "stretto"


def check_command(words: list[str]) -> None:
    """Check that a line of the command `stretto` has a command and options that exist."""
    found: Any = typer.main.get_command(app)
    name, *rest = words
    command = found.get_command(found.make_context("stretto", [name], resilient_parsing=True), name)
    assert command is not None, words
    known = {option for one in command.params for option in one.opts}
    assert {word for word in rest if word.startswith("--")} <= known, words


def extras_of(text: str) -> set[str]:
    """Return the extras that a line of pip installs."""
    found = re.search(r'"\.\[([a-z,-]+)\]"', text)
    return set(found[1].split(",")) if found else set()


def test_the_dockerfile_copies_files_and_installs_extras_that_exist() -> None:
    steps = read_dockerfile((DEPLOY / "Dockerfile").read_text("utf-8"))
    assert steps[0][0] == "FROM"
    installed: set[str] = set()
    for name, rest in steps:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in rest.split()[:-1]), rest
        if name == "RUN":
            installed |= extras_of(rest)
        if name in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert installed
    assert installed <= set(project["optional-dependencies"])
    assert ("ENTRYPOINT", '["stretto"]') in steps
    assert "stretto" in project["scripts"]
    users = [rest for name, rest in steps if name == "USER"]
    assert users == ["stretto"], "the image does not run as root"
    with pytest.raises(ValueError, match="HEALTHCHECK"):
        read_dockerfile("FROM x\nHEALTHCHECK none")


def test_the_compose_file_runs_commands_with_options_that_exist_and_mounts_files_that_exist() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    for service in services.values():
        if service["image"] == "stretto":
            check_command([str(word) for word in service["command"]])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).resolve().is_file(), source
        assert set(service.get("depends_on", ())) <= set(services)
    assert (DEPLOY / services["workers"]["build"]["context"] / "deploy/Dockerfile").is_file()
    hosts = set(services)
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    targets = [target for one in scraped for static in one["static_configs"] for target in static["targets"]]
    sources = yaml.safe_load((DEPLOY / "grafana/datasource.yml").read_text("utf-8"))["datasources"]
    named = [*targets, *(one["url"].removeprefix("http://") for one in sources)]
    assert {one.split(":")[0] for one in named} <= hosts
    assert yaml.safe_load((DEPLOY / "grafana/dashboards.yml").read_text("utf-8"))["providers"]


def test_the_settings_of_the_compose_file_are_settings() -> None:
    from stretto.router.config import RouterConfig
    from stretto.service.config import ServiceConfig

    tables = Tables((DEPLOY / "engines.toml").read_text("utf-8"), "engines.toml")
    router, service = tables.one("router"), tables.one("service")
    assert router is not None
    assert service is not None
    assert len(router.build(RouterConfig).worker) == 2
    assert service.build(ServiceConfig).admin_key_env == "STRETTO_ADMIN_KEY"


def test_the_unit_runs_a_command_with_options_that_exist() -> None:
    text = (DEPLOY / "stretto.service").read_text("utf-8")
    assert re.findall(r"^\[(\w+)\]$", text, re.MULTILINE) == ["Unit", "Service", "Install"]
    (line,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    program, *words = line.split()
    assert program.endswith("/bin/stretto")
    check_command(words)
    assert "ExecReload" not in text, "SIGHUP ends a server that has no certificates to read anew"


def values_in(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the values that a template names."""
    for found in re.findall(r"\.Values((?:\.\w+)+)", text):
        yield tuple(found.strip(".").split("."))


def rendered(text: str, **given: str) -> list[dict[str, Any]]:
    """Return a template with its values, as far as those of this chart are written."""
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8")) | given

    def value(match: re.Match[str]) -> str:
        found: Any = {"Values": values, "Release": {"Name": "door"}}
        for key in match[1].strip(".").split("."):
            found = found[key]
        return json.dumps(found) if isinstance(found, dict) else str(found)

    def choice(match: re.Match[str]) -> str:
        return match[2] if values[match[1]] else match[3]

    text = re.sub(r"\{\{ if \.Values\.(\w+) \}\}(\w+)\{\{ else \}\}(\w+)\{\{ end \}\}", choice, text)
    block = r"\s*\{\{- if \.Values\.(\w+) \}\}(.*?)\s*\{\{- end \}\}()"
    text = re.sub(block, choice, text, flags=re.DOTALL)
    text = re.sub(r"\{\{-? (\.[\w.]+)(?: \| \w+(?: \d+)?)? \}\}", value, text)
    assert "{{" not in text
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("has_all", [False, True])
def test_the_chart_names_values_that_it_has_and_runs_a_command_that_exists(*, has_all: bool) -> None:
    from stretto.router.config import RouterConfig

    assert yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["name"] == "stretto"
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    kinds: dict[str, dict[str, Any]] = {}
    for file in sorted((CHART / "templates").iterdir()):
        text = file.read_text("utf-8")
        for path in values_in(text):
            found: Any = values
            for key in path:
                assert key in found, path
                found = found[key]
        given = {"tlsSecret": "certificate", "stateClaim": "volume"} if has_all else {}
        kinds |= {one["kind"]: one for one in rendered(text, **given)}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (door,) = pod["containers"]
    check_command(door["args"])
    assert {one["name"] for one in door["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert {one["name"] for one in pod["volumes"]} == {"engines", *(("tls", "state") if has_all else ())}
    state = door["args"][door["args"].index("--state") + 1]
    assert (state in [one["mountPath"] for one in door["volumeMounts"]]) == has_all
    settings = kinds["ConfigMap"]["data"]["engines.toml"]
    assert ("tls.crt" in settings) == has_all
    router = Tables(settings, "engines.toml").one("router")
    assert router is not None
    (worker,) = router.build(RouterConfig).worker
    assert worker.kubernetes is not None
    assert worker.kubernetes.selector == "app=vllm"
    (rule,) = kinds["Role"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["endpointslices"], ["list", "watch"])
    assert door["readinessProbe"]["httpGet"]["scheme"] == ("HTTPS" if has_all else "HTTP")
