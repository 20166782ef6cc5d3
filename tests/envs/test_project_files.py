"""Both bundled environments are complete projects, of the form in which users write theirs."""

import importlib
import subprocess
import sys
from importlib.resources import files

import pytest
import yaml

PROJECTS = ("echo", "benchmark")


@pytest.fixture(params=PROJECTS)
def name(request):
    return request.param


@pytest.fixture
def project(name):
    return files("openenv.envs") / name


def run(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_manifest_names_an_app_that_exists(name, project):
    manifest = yaml.safe_load((project / "openenv.yaml").read_text())
    assert manifest.pop("description")
    assert manifest == {
        "spec_version": 1,
        "name": name,
        "version": "1.0.0",
        "type": "space",
        "runtime": "fastapi",
        "app": "server.app:app",
        "port": 8000,
    }
    module, attribute = manifest["app"].split(":")
    app = getattr(importlib.import_module(f"openenv.envs.{name}.{module}"), attribute)
    assert app.state.openenv.env_name == name


def test_the_readme_starts_with_the_facts_that_a_space_needs(project):
    readme = (project / "README.md").read_text()
    _, front, body = readme.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["title"]
    assert facts["emoji"]
    assert facts["sdk"] == "docker"
    assert facts["app_port"] == 8000
    assert facts["base_path"] == "/web"
    assert "openenv" in facts["tags"]
    assert body.strip().startswith("# ")


def test_every_field_of_the_types_is_explained_in_the_readme(name, project):
    readme = (project / "README.md").read_text()
    module = importlib.import_module(f"openenv.envs.{name}.models")
    common = {"done", "reward", "metadata"}
    for cls in (getattr(module, exported) for exported in module.__all__):
        for field in set(cls.model_fields) - common:
            assert f"`{field}`" in readme


def test_the_image_is_built_in_stages_runs_unprivileged_and_is_watched(project):
    lines = (project / "server" / "Dockerfile").read_text().splitlines()
    assert sum(line.startswith("FROM ") for line in lines) == 2
    user = next(line for line in lines if line.startswith("USER ")).removeprefix("USER ")
    assert int(user) >= 1000  # a number, by which places know that it is not root
    assert any("--only-binary=:all:" in line for line in lines)
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    assert lines[-1] == 'CMD ["openenv", "serve", ".", "--host", "0.0.0.0", "--port", "8000"]'


def test_the_environment_checks_itself_as_a_file(name, project):
    outcome = run(project / "server" / f"{name}_environment.py")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == f"{name} environment: ok\n"


def test_the_environment_checks_itself_as_a_module(name):
    outcome = run("-W", "error", "-m", f"openenv.envs.{name}.server.{name}_environment")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == f"{name} environment: ok\n"


def test_a_failed_self_check_says_what_is_wrong_and_exits_with_an_error(name, project):
    broken = f"""
import runpy
import pydantic
from openenv.envs.{name} import models

observation = next(cls for cls in vars(models).values() if getattr(cls, "__name__", "").endswith("Observation")
                   and cls.__module__ == models.__name__)
validated = observation.__init__

def changed(self, **values):
    validated(self, **values)
    self.reward = -1.0

observation.__init__ = changed
runpy.run_path({str(project / "server" / f"{name}_environment.py")!r}, run_name="__main__")
"""
    outcome = run("-c", broken)
    assert outcome.returncode == 1
    assert outcome.stdout.startswith("wrong: ")


def test_the_package_is_imported_without_the_server_and_the_client(name):
    code = f"""
import sys
import openenv.envs.{name}
heavy = {{"fastapi", "starlette", "uvicorn", "picows", "openenv.server", "openenv.client"}} & set(sys.modules)
print(*sorted(heavy))
"""
    outcome = run("-c", code)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "\n", "")


def test_the_client_is_imported_without_the_server(name):
    code = f"""
import sys
import openenv.envs.{name} as project
client = getattr(project, "{name.capitalize()}Env")
heavy = {{"fastapi", "starlette", "uvicorn", "openenv.server"}} & set(sys.modules)
print(*sorted(heavy))
"""
    outcome = run("-c", code)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "\n", "")


def test_the_package_exports_client_and_types_and_nothing_else(name):
    project = importlib.import_module(f"openenv.envs.{name}")
    title = name.capitalize()
    assert project.__all__ == [f"{title}Action", f"{title}Env", f"{title}Observation"]
    assert all(getattr(project, exported).__name__ == exported for exported in project.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        _ = project.Other
