"""A page made with Gradio for any environment, as a part of pages that authors make with it."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..errors import MissingExtra, OpenEnvError
from ..types import EnvironmentMetadata

if TYPE_CHECKING:
    from .web_manager import WebInterfaceManager

__all__ = ["build_gradio_app", "get_gradio_display_title", "get_quick_start_markdown", "load_gradio"]


def get_gradio_display_title(metadata: EnvironmentMetadata | None, fallback: str = "OpenEnv Environment") -> str:
    """The title of a page about an environment: with its name, or else with `fallback`."""
    return f"OpenEnv: {metadata.name if metadata else fallback}"


def get_quick_start_markdown(
    metadata: EnvironmentMetadata | None, action_cls: type[Any], observation_cls: type[Any]
) -> str:
    """How a program plays in an environment, as Markdown with an example in Python.

    Args:
        metadata: Its name stands in the heading.
        action_cls: Its required fields stand in the example.
        observation_cls: Taken for existing code, and not used.
    """
    fields = getattr(action_cls, "model_fields", {})
    action = ", ".join(f'"{name}": ...' for name, field in fields.items() if field.is_required())
    return (
        f"### Connect to {metadata.name if metadata else 'this environment'}\n\n"
        "```python\nfrom openenv import GenericEnvClient\n\n"
        'with GenericEnvClient("http://localhost:8000") as env:\n    result = env.reset()\n'
        f"    result = env.step({{{action}}})\n```"
    )


def build_gradio_app(
    web_manager: WebInterfaceManager,
    action_fields: list[dict[str, Any]],
    metadata: EnvironmentMetadata | None,
    is_chat_env: bool,
    title: str = "OpenEnv Environment",
    quick_start_md: str | None = None,
) -> Any:
    """A page with a form for actions, buttons for reset, step and state, and what came of the last of them.

    A `gradio_builder` gets the same arguments, so that it can show this page beside its own.

    Args:
        web_manager: Plays in the environment.
        action_fields: What the form asks for, as `create_app` gives it to builders.
        metadata: Name, description and README are shown.
        is_chat_env: Taken for existing code: the fields say what the form needs.
        title: In place of the environment's name where there is no metadata.
        quick_start_md: Markdown below the form.

    Returns:
        A `gradio.Blocks`.

    Raises:
        MissingExtra: Gradio is not installed.
    """
    gradio = load_gradio()
    display_title = get_gradio_display_title(metadata, title)

    async def reset() -> Any:
        return await _shown(gradio, web_manager.reset_environment)

    async def step(*values: Any) -> Any:
        given = {field["name"]: value for field, value in zip(action_fields, values, strict=True)}
        action = {name: value for name, value in given.items() if value not in (None, "")}
        return await _shown(gradio, web_manager.step_environment, action)

    async def get_state() -> Any:
        return web_manager.get_state()

    async def state() -> Any:
        return await _shown(gradio, get_state)

    with gradio.Blocks(title=display_title) as blocks:
        gradio.Markdown(f"# {display_title}\n\n{metadata.description if metadata else ''}")
        with gradio.Row():
            with gradio.Column():
                inputs = [_component(gradio, field) for field in action_fields]
                with gradio.Row():
                    buttons = {each: gradio.Button(each) for each in ("Reset", "Step", "State")}
            result = gradio.JSON(label="Result")
        if quick_start_md:
            gradio.Markdown(quick_start_md)
        if metadata and metadata.readme_content:
            with gradio.Accordion("README", open=False):
                gradio.Markdown(metadata.readme_content)
        buttons["Reset"].click(reset, outputs=result)
        buttons["Step"].click(step, inputs=inputs, outputs=result)
        buttons["State"].click(state, outputs=result)
    return blocks


def load_gradio() -> Any:
    """The package `gradio`.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        return importlib.import_module("gradio")
    except ModuleNotFoundError:
        raise MissingExtra("gradio", None) from None


async def _shown(gradio: Any, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """What a call returns; its failure as the error that Gradio shows on the page."""
    try:
        return await call(*arguments)
    except (OpenEnvError, ValidationError) as error:
        raise gradio.Error(str(error)) from error


def _component(gradio: Any, field: dict[str, Any]) -> Any:
    name, default = field["name"], field["default_value"]
    about = {"label": name if not field["required"] else f"{name} *", "info": field["help_text"] or None}
    if field["type"] == "select":
        return gradio.Dropdown(choices=field["choices"], value=default, **about)
    if field["type"] == "checkbox":
        return gradio.Checkbox(value=bool(default), **about)
    if field["type"] == "number" and field["required"]:
        return gradio.Number(value=default, minimum=field["min_value"], maximum=field["max_value"], **about)
    # Gradio's number has no empty value, and an optional number needs one.
    return gradio.Textbox(value=None if default is None else str(default), placeholder=field["placeholder"], **about)
