"""Draws reward_curve.png: an agent learns from rewards which tools and arguments fit which kind of task.

In the folder above this one: `python -m tool_shop.plot` (it takes a minute, and needs matplotlib).
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from openenv.client.mcp_client import SyncMCPToolClient
from openenv.mcp import CallToolAction

from .client import ToolShopEnv
from .server.app import app

__all__ = ["Learner", "evaluate", "main", "train"]

EPISODES = 1500
EVERY = 50
SEEDS = 3

# The learner chooses one answer to each question. Patterns extract the e-mail address, number or street from the text
# of a task, but only rewards show how to use them.
CHOICES: dict[str, list[str]] = {
    "customer": ["by name", "by e-mail address"],
    "tool": ["place_order", "cancel_order", "refund", "update_address", "nothing"],
    "product": ["first found", "cheapest", "most expensive", "of the first order", "of the last order"],
    "quantity": ["one", "as the task says", "as in the order"],
    "orders": ["the first", "the last", "the last delivered", "all placed", "all"],
}


class Learner:
    """Chooses the answers with the best mean reward in tasks of the same wording, or sometimes random answers.

    Args:
        seed: Seed of the random choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - a game
        self._totals: defaultdict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.5, 1.0])

    def choose(self, wording: str, exploration_rate: float) -> dict[str, str]:
        chosen = {}
        for question, answers in CHOICES.items():
            if self._random.random() < exploration_rate:
                chosen[question] = self._random.choice(answers)
            else:
                means = [self._mean(wording, question, answer) for answer in answers]
                best = [answer for answer, mean in zip(answers, means, strict=True) if mean == max(means)]
                chosen[question] = self._random.choice(best)
        return chosen

    def learn(self, wording: str, chosen: dict[str, str], reward: float) -> None:
        for question, answer in chosen.items():
            total = self._totals[wording, question, answer]
            total[0] = 0.95 * total[0] + reward  # old rewards came with other choices, so they count less
            total[1] = 0.95 * total[1] + 1.0

    def _mean(self, wording: str, question: str, answer: str) -> float:
        total, count = self._totals[wording, question, answer]
        return total / count


def wording_of(text: str) -> str:
    """The text of a task without names and numbers, which is equal for similar tasks."""
    text = re.sub(r"^.*?\)|moved to .*?\.|category \w+", "", text)
    return re.sub(r"\d+", "#", text).strip()


def episode(env: SyncMCPToolClient, text: str, chosen: dict[str, str]) -> float:
    """Carries out the chosen answers and returns the reward of `finish`. A call that fails is skipped."""
    name, email = re.findall(r"^(.*?) \((\S+)\)", text)[0]
    found = _call(env, "search_customers", query=name if chosen["customer"] == "by name" else email)
    orders = _call(env, "list_orders", customer_id=found[0]["id"]) if found else []
    if found and orders:
        for arguments in _writes(env, text, chosen, found[0], orders):
            _call(env, chosen["tool"], **arguments)
    return float(env.step(CallToolAction(tool_name="finish")).reward or 0.0)


def _writes(
    env: SyncMCPToolClient, text: str, chosen: dict[str, str], customer: Any, orders: list[Any]
) -> list[dict[str, Any]]:
    """The arguments of each call of the chosen tool."""
    if chosen["tool"] == "place_order":
        item = orders[0 if chosen["product"] == "of the first order" else -1]["items"][0]
        product = item["product_id"] if "order" in chosen["product"] else _find_product(env, text, chosen["product"])
        stated = re.search(r"wants (\d+) of", text)
        counts = {"as the task says": int(stated[1]) if stated else 1, "as in the order": item["quantity"]}
        return [{"customer_id": customer["id"], "product_id": product, "quantity": counts.get(chosen["quantity"], 1)}]
    if chosen["tool"] == "update_address":
        moved = re.search(r"moved to (.*?)\.", text)
        return [{"customer_id": customer["id"], "address": moved[1] if moved else "unknown"}]
    if chosen["tool"] in ("cancel_order", "refund"):
        return [{"order_id": order["id"]} for order in _select_orders(orders, chosen["orders"])]
    return []


def _find_product(env: SyncMCPToolClient, text: str, which: str) -> int:
    category = re.search(r"category (\w+)", text)
    goods = _call(env, "search_products", query=category[1] if category else "")
    goods = [each for each in goods if category is None or each["category"] == category[1]]
    if which != "first found":
        goods.sort(key=lambda each: each["cents"], reverse=which == "most expensive")
    return int(goods[0]["id"])


def _select_orders(orders: list[Any], which: str) -> list[Any]:
    status = {"the last delivered": "delivered", "all placed": "placed"}.get(which)
    orders = [order for order in orders if status is None or order["status"] == status][:10]
    return orders if "all" in which else orders[:1] if which == "the first" else orders[-1:]


def _call(env: SyncMCPToolClient, tool: str, **arguments: Any) -> Any:
    result = env.step(CallToolAction(tool_name=tool, arguments=arguments))
    observation = result.observation
    return [] if observation.error is not None else observation.result["data"]


def train(env: SyncMCPToolClient, learner: Learner, episodes: int) -> list[float]:
    """The rewards of tasks of the split train, with learning. The exploration rate falls to 0."""
    rewards = []
    for number in range(episodes):
        text = env.reset(split="train", index=number % 300).observation.task
        chosen = learner.choose(wording_of(text), 0.3 * max(0.0, 1 - number / (0.75 * episodes)))
        rewards.append(episode(env, text, chosen))
        learner.learn(wording_of(text), chosen, rewards[-1])
    return rewards


def evaluate(env: SyncMCPToolClient, learner: Learner, episodes: int = 100) -> float:
    """The mean reward of tasks of the split test, without learning or exploration."""
    total = 0.0
    for index in range(episodes):
        text = env.reset(split="test", index=index).observation.task
        total += episode(env, text, learner.choose(wording_of(text), 0.0))
    return total / episodes


def main() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), dpi=80, layout="constrained")
    axes = figure.subplots()
    middles = [start + EVERY / 2 for start in range(0, EPISODES, EVERY)]
    curves, ends = [], []
    with ToolShopEnv(app=app).sync() as env:
        for seed in range(SEEDS):
            learner = Learner(seed)
            rewards = train(env, learner, EPISODES)
            ends.append(evaluate(env, learner))
            curves.append([sum(rewards[start : start + EVERY]) / EVERY for start in range(0, EPISODES, EVERY)])
            axes.plot(middles, curves[-1], color="#2166ac", alpha=0.25, linewidth=1)
            print(f"seed {seed}: {curves[-1][0]:.2f} -> {curves[-1][-1]:.2f}, test {ends[-1]:.2f}")  # noqa: T201
    mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    axes.plot(middles, mean, color="#2166ac", linewidth=2, label=f"mean of {SEEDS} seeds (thin: each)")
    test = sum(ends) / len(ends)
    axes.axhline(
        test, color="#444444", linestyle="--", linewidth=1, label=f"at the end, on the test split: {test:.2f}"
    )
    axes.set(xlabel="episodes", ylabel=f"reward, mean of {EVERY}", title="tool_shop: learning which tools to call")
    axes.set_ylim(0, 1.05)
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
