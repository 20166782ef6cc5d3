from __future__ import annotations

import pytest

from openenv.envs.echo.models import EchoAction
from openenv.errors import InvalidAction
from openenv.evals.inspect_bridge import Wording

from .environments import DiceAction


def test_an_action_of_one_text_is_the_whole_answer() -> None:
    wording = Wording(EchoAction.model_json_schema())
    assert wording.read(' {"not": "JSON"}\n') == {"message": '{"not": "JSON"}'}
    assert "nothing else" in wording.instructions


@pytest.mark.parametrize(
    "answer",
    [
        '{"stop": true}',
        'I think:\n```json\n{"stop": true}\n```',
        '```\n{"stop": false}\n```\nNo:\n```\n{"stop": true}\n```',
        'So I choose {"stop": true}.',
    ],
)
def test_any_other_action_is_json_somewhere_in_the_answer(answer: str) -> None:
    wording = Wording(DiceAction.model_json_schema())
    assert wording.read(answer) == {"stop": True}
    assert '"stop"' in wording.instructions
    assert "metadata" not in wording.instructions


@pytest.mark.parametrize("answer", ["", "stop", "[1]", "{", "}{", '"stop"'])
def test_an_answer_without_an_object_is_no_action(answer: str) -> None:
    with pytest.raises(InvalidAction, match="one complete JSON object"):
        Wording(DiceAction.model_json_schema()).read(answer)
