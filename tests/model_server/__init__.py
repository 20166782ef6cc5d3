"""A model endpoint of the tests: real HTTP, four APIs, scripted policies, faults, and a log of what was sampled.

In a test: `with model_server() as server: OpenAIModel("tool", server.url)`. As a program:
`python -m tests.model_server --workers 2`, which prints its URL. The name of the model picks the policy.
"""

from .policies import POLICIES, ModelReply, Policy
from .server import FAULTS, ModelServer, Sample, Seen, model_process, model_server
from .tokens import PairTokenizer, logprob_of

__all__ = [
    "FAULTS",
    "POLICIES",
    "ModelReply",
    "ModelServer",
    "PairTokenizer",
    "Policy",
    "Sample",
    "Seen",
    "logprob_of",
    "model_process",
    "model_server",
]
