"""Where the names of existing code are defined. The modules of `openenv.core` re-export them from this one table.

`from ._homes import *` gives a type checker all of these names. At run time it gives only `take`: a name is imported
when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

from .._imports import lazy

if TYPE_CHECKING:
    from .._asyncio import run_async_safely as run_async_safely
    from ..capture.calls import BUDGET_STOP_MESSAGE as BUDGET_STOP_MESSAGE
    from ..capture.calls import NON_POLICY_SAMPLING as NON_POLICY_SAMPLING
    from ..capture.calls import training_sampling as training_sampling
    from ..capture.checks import validate_training_turn as validate_training_turn
    from ..capture.export import TurnNode as TurnNode
    from ..capture.export import export_session as export_session
    from ..capture.export import measure_retokenization_skew as measure_retokenization_skew
    from ..capture.export import to_trace_entries as to_trace_entries
    from ..capture.export import to_training_trace as to_training_trace
    from ..capture.export import to_turn_records as to_turn_records
    from ..capture.forwarding import *
    from ..capture.probe import LLMReport as LLMReport
    from ..capture.probe import require_llm as require_llm
    from ..capture.probe import validate_llm as validate_llm
    from ..capture.server import CaptureServer as CaptureServer
    from ..capture.sessions import rollout_type_for as rollout_type_for
    from ..capture.training import *
    from ..capture.upstream import CAPTURE_LEVELS as CAPTURE_LEVELS
    from ..capture.upstream import MAX_FIXES as MAX_FIXES
    from ..capture.upstream import InferenceClient as InferenceClient
    from ..capture.upstream import UpstreamError as UpstreamError
    from ..capture.upstream import UpstreamTimeoutError as UpstreamTimeoutError
    from ..capture.upstream import UpstreamTransportError as UpstreamTransportError
    from ..client import *
    from ..client.endpoints import convert_to_ws_url as convert_to_ws_url
    from ..client.mcp_client import *
    from ..environment import *
    from ..errors import *
    from ..evals import *
    from ..harness.agents import *
    from ..harness.environment import HarnessAction as HarnessAction
    from ..harness.environment import HarnessEnvironment as HarnessEnvironment
    from ..harness.process import HarnessProcess as HarnessProcess
    from ..harness.tool_server import HarnessMCPBridge as HarnessMCPBridge
    from ..harness.tool_server import build_bridge_server as build_bridge_server
    from ..llm import *
    from ..mcp.environment import MCPEnvironment as MCPEnvironment
    from ..mcp.library import get_server_tools as get_server_tools
    from ..mcp.toolbox import VALID_MODES as VALID_MODES
    from ..mcp.types import *
    from ..messages import *
    from ..protocol.forms import serialize_observation as serialize_observation
    from ..protocol.jsonrpc import JsonRpcErrorCode as JsonRpcErrorCode
    from ..providers import *
    from ..providers.launch import hf_space_subdomain as hf_space_subdomain
    from ..providers.uv import GIT_URL_PREFIX as GIT_URL_PREFIX
    from ..rollouts.collect_runner import CollectResult as CollectResult
    from ..rollouts.collect_runner import CollectRunner as CollectRunner
    from ..rollouts.collect_runner import RolloutSerializer as RolloutSerializer
    from ..rollouts.collect_runner import build_model_step as build_model_step
    from ..rollouts.collect_runner import push_to_hf_hub as push_to_hf_hub
    from ..rollouts.collected import METADATA_FILENAME as METADATA_FILENAME
    from ..rollouts.collected import README_FILENAME as README_FILENAME
    from ..rollouts.collected import RESULTS_FILENAME as RESULTS_FILENAME
    from ..rollouts.collected import EpisodeRecord as EpisodeRecord
    from ..rollouts.collected import build_dataset_readme as build_dataset_readme
    from ..rollouts.resource import HarnessAdapter as HarnessAdapter
    from ..rollouts.resource import HarnessRolloutResult as HarnessRolloutResult
    from ..rollouts.resource import HarnessRunLimits as HarnessRunLimits
    from ..rollouts.resource import LoopOwningSession as LoopOwningSession
    from ..rollouts.resource import ModelStep as ModelStep
    from ..rollouts.resource import ModelStepResult as ModelStepResult
    from ..rollouts.resource import ResourceSession as ResourceSession
    from ..rollouts.resource import ResourceSessionFactory as ResourceSessionFactory
    from ..rollouts.resource import RolloutEvent as RolloutEvent
    from ..rollouts.resource import SessionMCPBridge as SessionMCPBridge
    from ..rollouts.resource import SessionT as SessionT
    from ..rollouts.resource import StepEnvSessionAdapter as StepEnvSessionAdapter
    from ..rollouts.resource import ToolResult as ToolResult
    from ..rollouts.resource import ToolTraceEntry as ToolTraceEntry
    from ..rollouts.resource import TrainableSession as TrainableSession
    from ..rollouts.resource import VerifyResult as VerifyResult
    from ..rollouts.white_box import CLIHarnessAdapter as CLIHarnessAdapter
    from ..rollouts.white_box import MCPHarnessAdapter as MCPHarnessAdapter
    from ..rollouts.white_box import build_harness_rollout_func as build_harness_rollout_func
    from ..rubrics import *
    from ..server import HTTPEnvServer as HTTPEnvServer
    from ..server.app import GetEndpointConfig as GetEndpointConfig
    from ..server.app import register_get_endpoints as register_get_endpoints
    from ..server.metadata import load_environment_metadata as load_environment_metadata
    from ..server.page.episode import *
    from ..server.page.gradio import *
    from ..tools import *
    from ..types import *
    from .env_server.gradio_theme import *
    from .env_server.web_interface import create_app as create_app
    from .env_server.web_interface import create_fastapi_app as create_fastapi_app
    from .env_server.web_interface import create_web_interface_app as create_web_interface_app

if not TYPE_CHECKING:
    __all__ = ["take"]

# By home, the names that existing code imports from `openenv.core`.
_NAMES = {
    "openenv._asyncio": "run_async_safely",
    "openenv.client": "EnvClient GenericAction GenericEnvClient SyncEnvClient",
    "openenv.client.endpoints": "convert_to_ws_url",
    "openenv.client.mcp_client": "GenericMCPObservation MCPClientBase MCPToolClient",
    "openenv.core.env_server.gradio_theme": "OPENENV_GRADIO_CSS OPENENV_GRADIO_THEME",
    "openenv.core.env_server.web_interface": "create_app create_fastapi_app create_web_interface_app",
    "openenv.capture.calls": "BUDGET_STOP_MESSAGE NON_POLICY_SAMPLING training_sampling",
    "openenv.capture.checks": "validate_training_turn",
    "openenv.capture.export": """
        TurnNode export_session measure_retokenization_skew to_trace_entries to_training_trace to_turn_records
    """,
    "openenv.capture.forwarding": """
        CloudflareForwarder DirectExposure ForwardingError GradioForwarder PortForwarder make_forwarder
    """,
    "openenv.capture.probe": "LLMReport require_llm validate_llm",
    "openenv.capture.server": "CaptureServer",
    "openenv.capture.sessions": "rollout_type_for",
    "openenv.capture.training": "TraceEntry TrainingTrace TrainingTurn",
    "openenv.capture.upstream": """
        CAPTURE_LEVELS InferenceClient MAX_FIXES UpstreamError UpstreamTimeoutError UpstreamTransportError
    """,
    "openenv.harness.agents": """
        AgenticHarnessAdapter HarnessClientMessage HarnessConfig HarnessError HarnessEvent HarnessEventType
        HarnessNotRunningError HarnessProtocolError HarnessResponse HarnessStartupError HarnessTransport
        HarnessTurnTimeoutError events_to_metadata resolve_tool_conflicts
    """,
    "openenv.harness.environment": "HarnessAction HarnessEnvironment",
    "openenv.harness.process": "HarnessProcess",
    "openenv.harness.tool_server": "HarnessMCPBridge build_bridge_server",
    "openenv.rollouts.collect_runner": """
        CollectResult CollectRunner RolloutSerializer build_model_step push_to_hf_hub
    """,
    "openenv.rollouts.collected": """
        EpisodeRecord METADATA_FILENAME README_FILENAME RESULTS_FILENAME build_dataset_readme
    """,
    "openenv.rollouts.resource": """
        HarnessAdapter HarnessRolloutResult HarnessRunLimits LoopOwningSession ModelStep ModelStepResult
        ResourceSession ResourceSessionFactory RolloutEvent SessionMCPBridge SessionT StepEnvSessionAdapter
        ToolResult ToolTraceEntry TrainableSession VerifyResult
    """,
    "openenv.rollouts.white_box": "CLIHarnessAdapter MCPHarnessAdapter build_harness_rollout_func",
    "openenv.environment": """
        CompositeTransform Environment Message ModelTokenizer NullTransform TaskProvider Transform
    """,
    "openenv.errors": """
        ConcurrencyConfigurationError EnvironmentFactoryError OpenEnvError SessionCapacityError
        SessionCreationError SessionNotFoundError
    """,
    "openenv.evals": "EvalConfig EvalHarness EvalResult InspectAIHarness",
    "openenv.llm": "AnthropicClient LLMClient LLMResponse OpenAIClient ToolCall create_llm_client",
    "openenv.mcp.environment": "MCPEnvironment",
    "openenv.mcp.library": "get_server_tools",
    "openenv.mcp.toolbox": "VALID_MODES",
    "openenv.mcp.types": """
        MCP_TOOL_CALL_TIMEOUT RESERVED_TOOL_NAMES CallToolAction CallToolObservation JsonRpcError JsonRpcRequest
        JsonRpcResponse ListToolsAction ListToolsObservation McpMethod Tool ToolError ToolErrorType WSMCPMessage
        WSMCPResponse deserialize_action deserialize_action_with_preprocessing
    """,
    "openenv.messages": """
        GetTaskRangeRequest GetTaskRequest HealthResponse ListTasksRequest NumTasksRequest ResetRequest
        ResetResponse SchemaResponse StepRequest StepResponse WSCloseMessage WSErrorCode WSErrorResponse
        WSIncomingMessage WSObservationResponse WSResetMessage WSStateMessage WSStateResponse WSStepMessage
    """,
    "openenv.protocol.forms": "serialize_observation",
    "openenv.protocol.jsonrpc": "JsonRpcErrorCode",
    "openenv.providers": """
        ACASandboxProvider ContainerProvider DaytonaProvider DockerSwarmProvider KubernetesProvider
        LocalDockerProvider ModalProvider NovitaSandboxProvider RuntimeProvider UVProvider
    """,
    "openenv.providers.launch": "hf_space_subdomain",
    "openenv.providers.uv": "GIT_URL_PREFIX",
    "openenv.rubrics": """
        ExponentialDiscountingTrajectoryRubric Gate LLMJudge Rubric RubricDict RubricList Sequential
        TrajectoryRubric WeightedSum
    """,
    "openenv.server": "HTTPEnvServer",
    "openenv.server.app": "GetEndpointConfig register_get_endpoints",
    "openenv.server.metadata": "load_environment_metadata",
    "openenv.server.page.episode": "ActionLog EpisodeState",
    "openenv.server.page.gradio": """
        WebInterfaceManager build_gradio_app get_gradio_display_title get_quick_start_markdown
    """,
    "openenv.tools": "GitServerClient PyExecutor RepoInfo",
    "openenv.types": """
        ActT Action BaseMessage CodeExecResult ConcurrencyConfig EnvironmentMetadata HealthStatus ObsT
        Observation Scalar ServerCapacityStatus ServerMode SessionInfo State StateT StepResult
    """,
}
HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


# Names that stand for something else in a package and its submodules.
OTHERS = {
    "openenv.core.harness": {
        "Message": "openenv.rollouts.resource",
        "_resolve_env_reward": "openenv.rollouts.white_box",
    }
}
# The submodules of `openenv.core.containers.runtime` that have no files, and their names.
_CLOUD_MODULES = {
    "aca_provider": "ACASandboxProvider ContainerProvider",
    "daytona_provider": "ContainerProvider DaytonaProvider",
    "modal_provider": "ContainerProvider ModalProvider",
    "novita_provider": "ContainerProvider NovitaSandboxProvider",
}
# The submodules of `openenv.core.harness` that have no files, and their names.
_HARNESS_MODULES = {
    "adapter": """
        AgenticHarnessAdapter HarnessConfig HarnessError HarnessEvent HarnessEventType HarnessNotRunningError
        HarnessResponse HarnessStartupError HarnessTurnTimeoutError Tool
    """,
    "bridge": """
        HarnessError HarnessMCPBridge build_bridge_server
    """,
    "capture": """
        CaptureServer InferenceClient LLMReport TurnNode UpstreamError measure_retokenization_skew require_llm
        to_trace_entries to_training_trace to_turn_records validate_llm
    """,
    "capture.contract": """
        BUDGET_STOP_MESSAGE TrainingTrace TurnNode measure_retokenization_skew to_trace_entries to_training_trace
        to_turn_records validate_training_turn
    """,
    "capture.export": """
        export_session
    """,
    "capture.forwarding": """
        CloudflareForwarder DirectExposure ForwardingError GradioForwarder PortForwarder make_forwarder
    """,
    "capture.graph": """
        TurnNode
    """,
    "capture.runner": """
        CaptureServer
    """,
    "capture.sessions": """
        rollout_type_for training_sampling
    """,
    "capture.upstream": """
        CAPTURE_LEVELS InferenceClient MAX_FIXES NON_POLICY_SAMPLING UpstreamError UpstreamTimeoutError
        UpstreamTransportError training_sampling
    """,
    "capture.validate": """
        validate_training_turn
    """,
    "capture.validate_llm": """
        InferenceClient LLMReport MAX_FIXES require_llm validate_llm
    """,
    "config": """
        HarnessConfig HarnessTransport
    """,
    "environment": """
        Action AgenticHarnessAdapter CallToolAction HarnessAction HarnessEnvironment HarnessError HarnessEvent
        HarnessEventType HarnessMCPBridge HarnessNotRunningError HarnessTurnTimeoutError ListToolsAction
        MCPEnvironment Observation State Tool build_bridge_server events_to_metadata resolve_tool_conflicts
        run_async_safely
    """,
    "events": """
        HarnessClientMessage HarnessEvent HarnessEventType HarnessProtocolError HarnessResponse
        events_to_metadata
    """,
    "process": """
        HarnessNotRunningError HarnessProcess HarnessStartupError
    """,
    "rollout": """
        CLIHarnessAdapter HarnessAdapter HarnessRolloutResult HarnessRunLimits JsonRpcErrorCode JsonRpcResponse
        LLMResponse LoopOwningSession MCPHarnessAdapter Message ModelStep ModelStepResult RESERVED_TOOL_NAMES
        ResourceSession ResourceSessionFactory RolloutEvent SessionMCPBridge SessionT State
        StepEnvSessionAdapter StepResult Tool ToolResult ToolTraceEntry TraceEntry TrainableSession
        TrainingTrace VerifyResult _resolve_env_reward build_harness_rollout_func
    """,
    "tools": """
        RESERVED_TOOL_NAMES Tool resolve_tool_conflicts
    """,
    "training": """
        TrainingTrace TrainingTurn
    """,
}


def take(module: str, names: Iterable[str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a module that re-exports names from their homes.

    The submodules of a package are also its attributes, and are imported when they are first used.

    Args:
        module: The module's `__name__`.
        names: The names in the module.
    """
    package = module if "__path__" in vars(sys.modules[module]) else module.rpartition(".")[0]
    others = OTHERS.get(package, {})
    hidden = [name for name in others if name.startswith("_")]
    get, listed = lazy(module, {name: others.get(name) or HOMES[name] for name in [*names, *hidden]})

    def get_or_import(name: str) -> Any:
        if package == module and name not in HOMES and find_spec(f"{module}.{name}"):
            return importlib.import_module(f"{module}.{name}")
        return get(name)

    if module == "openenv.core.harness":
        _add_modules(module, _HARNESS_MODULES)
    if module == "openenv.core.containers.runtime":
        _add_modules(module, _CLOUD_MODULES)
    return get_or_import, listed


def _add_modules(package: str, modules: Mapping[str, str]) -> None:
    """Adds submodules that have no files to a package, and theirs: each re-exports names."""
    for name, names in modules.items():
        module: Any = module_from_spec(ModuleSpec(f"{package}.{name}", None))
        sys.modules[module.__name__] = module
        module.__all__ = names.split()
        module.__getattr__, module.__dir__ = take(module.__name__, module.__all__)
        parent, _, last = module.__name__.rpartition(".")
        if last not in sys.modules[parent].__all__:
            setattr(sys.modules[parent], last, module)
