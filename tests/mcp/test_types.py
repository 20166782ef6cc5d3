from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from openenv.mcp import types
from openenv.mcp.types import (
    CallToolAction,
    CallToolObservation,
    JsonRpcRequest,
    JsonRpcResponse,
    ListToolsAction,
    McpMethod,
    Tool,
    ToolError,
    WSMCPMessage,
    WSMCPResponse,
)
from openenv.protocol.jsonrpc import JsonRpcErrorCode


def test_actions_say_what_they_are():
    assert ListToolsAction().model_dump() == {"metadata": {}, "type": "list_tools"}
    assert CallToolAction(tool_name="add").model_dump() == {
        "metadata": {},
        "type": "call_tool",
        "tool_name": "add",
        "arguments": {},
    }
    with pytest.raises(ValidationError):
        CallToolAction(tool_name="add", argumnets={})


def test_an_observation_has_a_result_or_an_error():
    told = CallToolObservation.model_validate(
        {"tool_name": "add", "error": {"error_type": "timeout", "message": "late"}}
    )
    assert told.result is None
    assert told.error == ToolError(error_type=types.ToolErrorType.TIMEOUT, message="late")
    assert told.error.model_dump(mode="json")["error_type"] == "timeout"
    with pytest.raises(ValidationError):
        ToolError(error_type="other", message="")


def test_a_tool_forbids_what_it_does_not_know():
    with pytest.raises(ValidationError):
        Tool(name="add", description="", input_schema={}, other=1)


def test_a_response_has_a_result_or_an_error_and_never_both():
    good = JsonRpcResponse.success({"tools": []}, request_id=3)
    assert good.model_dump() == {"jsonrpc": "2.0", "id": 3, "result": {"tools": []}}
    bad = JsonRpcResponse.error_response(JsonRpcErrorCode.METHOD_NOT_FOUND, request_id="a")
    assert bad.model_dump() == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32601, "message": "Method not found", "data": None},
    }
    assert JsonRpcResponse.model_validate_json(bad.model_dump_json()) == bad


def test_messages_and_numbers_are_those_that_others_know():
    assert [code.value for code in JsonRpcErrorCode] == [-32700, -32600, -32601, -32602, -32603, -32000]
    assert list(McpMethod) == ["tools/list", "tools/call"]
    request = JsonRpcRequest.model_validate({"jsonrpc": "2.0", "method": "tools/list"})
    assert (request.params, request.id) == ({}, None)
    assert WSMCPMessage(data={}).type == WSMCPResponse(data={}).type == "mcp"
    assert {"reset", "step", "state", "close"} == types.RESERVED_TOOL_NAMES


def test_neither_words_nor_client_nor_environment_class_load_a_tool_library():
    program = (
        "import sys, openenv.mcp.types, openenv.mcp.environment, openenv.mcp.environment, openenv.client.mcp_client;"
        "print([name for name in ('fastmcp', 'mcp', 'httpx', 'fastapi', 'docker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
