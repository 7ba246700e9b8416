"""What users write: loads, kinds of GPUs and prices, checked before anything is simulated."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from stretto.costs.carried_over import gpu_costs, without_nvlink
from stretto.costs.gpus import GPUS
from stretto.costs.known_costs import llm_model
from stretto.costs.kv_room import check_fits
from stretto.costs.loading import PCIE_BYTES_S
from stretto.model.errors import ConfigError, UserError
from stretto.model.nearest_name import nearest_name
from stretto.model.wording import why_unreadable
from stretto.schema.typed import read_as
from stretto.sizing.load import Load
from stretto.sizing.servers import MAX_BATCH_TOKENS, Server, is_measured

_PER_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_LOAD = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:(sessions?)|(?:[a-z]+\s*)?(?:/|per|a)\s*([a-z]+))")
_GPU = re.compile(r"(?:([1-9][0-9]{0,2})x)?(.+)")
_MOST = 10**5
_Price: TypeAlias = Annotated[
    float, Meta(gt=0, le=10**6, description="a price above 0 and at most 1000000 for an hour of a GPU")
]


def parse_load(text: str) -> Load:
    """Parse a load, such as "88 sessions", "5/s" or "300 queries/min".

    Raises:
        UserError: it is not of such a form, or no number from above 0 to 100000.
    """
    matched = _LOAD.fullmatch(text.strip())
    if matched is None or (matched[3] is not None and matched[3] not in _PER_S):
        raise UserError(f'--load {text!r} is no load; give one such as "88 sessions", "5/s" or "300/min"')
    amount = float(matched[1])
    if matched[2] is not None:
        if not 1 <= amount <= _MOST or amount != int(amount):
            raise UserError(f"--load {text!r}: sessions are a whole number from 1 to {_MOST}")
        return Load("sessions", amount)
    per_s = amount / _PER_S[str(matched[3])]
    if not 0 < per_s <= _MOST:
        raise UserError(f"--load {text!r}: a rate is above 0, and at most {_MOST} a second")
    return Load("per_s", per_s)


def parse_servers(gpus: str, model: str) -> tuple[Server, ...]:
    """Parse kinds of servers, such as "H100,2xA100-80G": GPUs by their names, each with as many as hold the
    model together.

    Raises:
        ConfigError: a GPU or the model is unknown, or the model does not fit.
    """
    names = [name.strip() for name in gpus.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--gpu: there is no GPU; there are {', '.join(GPUS)}")
    servers = tuple(_server(name, model) for name in names)
    labels = [server.label for server in servers]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"--gpu: {twice} is named twice")
    return servers


def _server(text: str, model: str) -> Server:
    matched = _GPU.fullmatch(text)
    assert matched is not None
    num_gpus = int(matched[1] or 1)
    name = gpu_name(matched[2])
    costs = gpu_costs(name)
    if num_gpus > 1 and not GPUS[name].has_nvlink:
        costs = without_nvlink(costs, PCIE_BYTES_S)
    sizes = llm_model(model, costs)
    assert costs.hardware is not None
    kv_tokens = check_fits(sizes, costs.hardware, num_gpus, max_batch_tokens=MAX_BATCH_TOKENS)
    cost = costs.step_cost(sizes, num_gpus)
    return Server(name, num_gpus, sizes, cost, kv_tokens, is_measured(costs, sizes, num_gpus))


def gpu_name(name: str) -> str:
    """Return the name of a GPU in `GPUS`. The first part of a name stands for the one with the most memory.

    Raises:
        ConfigError: there is none.
    """
    begun = [gpu for gpu in GPUS if gpu.casefold().startswith(f"{name.casefold()}-")]
    if name.casefold() not in map(str.casefold, GPUS) and begun:
        return max(begun, key=lambda gpu: GPUS[gpu].hardware.memory_bytes)
    return nearest_name(name, GPUS, "there are no peak figures of the GPU")


def read_prices(path: Path, servers: Sequence[Server]) -> tuple[float, ...]:
    """Read the price of an hour of each server from a TOML file that has one for each GPU, as in `H100 =
    2.5`.

    Raises:
        ConfigError: the file cannot be read, a price is none, or that of a GPU is missing.
    """
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--prices {path}: {why_unreadable(error)}") from None
    prices: Mapping[str, float] = read_as(dict[str, _Price], found, f"--prices {path}")
    by_gpu = {gpu_name(name): price for name, price in prices.items()}
    if missing := [server.gpu for server in servers if server.gpu not in by_gpu]:
        raise ConfigError(f"--prices {path}: there is no price of {missing[0]}")
    return tuple(server.num_gpus * by_gpu[server.gpu] for server in servers)
