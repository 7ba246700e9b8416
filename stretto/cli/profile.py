"""`stretto profile`: measures an engine on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.model.errors import ConfigError
from stretto.model.nearest_name import check_name

if TYPE_CHECKING:
    from rich.table import Table

    from stretto.cli.engines import Assembled
    from stretto.engines.measurement import Measurement
    from stretto.model.deployment import Deployment
    from stretto.model.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The options of `stretto profile`."""

    engine: Annotated[
        str,
        typer.Argument(
            help="Engine: chunking, embedding, vectors, reranking, llm, or another one of --engines. "
            "Default: the one that --llm, --embedder or --reranker describes.",
            metavar="ENGINE",
        ),
    ] = ""
    models: options.ModelOptions
    save: Annotated[
        bool, typer.Option("--save", help="Use the profile in later runs of this engine and model.")
    ] = False
    as_json: options.AsJson = False
    fit: Annotated[
        Path | None,
        typer.Option("--fit", help="Do not measure, but fit a step cost to this CSV file.", metavar="FILE"),
    ] = None
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="config.json of the measured model.", metavar="FILE")
    ] = None
    preset: Annotated[
        str, typer.Option("--preset", help="Preset with the hardware and starting values.", metavar="NAME")
    ] = "A100-80G"
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", help="Number of devices of an instance.", metavar="NUMBER")
    ] = 1


def profile(given: ProfileOptions) -> None:
    """Measure an engine's latency by batch size, and fit the profile that schedulers and passes use.

    With --fit, fit the cost of an LLM's steps to measured steps instead, for simulation and planning.
    """
    if given.fit is not None:
        if given.engine or given.save or given.model_config is None:
            raise ConfigError("--fit takes --model-config, and neither an engine nor --save")
        from stretto.cli.fit import fit_steps

        fit_steps(
            given.fit,
            config_file=given.model_config,
            preset=given.preset,
            tensor_parallel=given.tensor_parallel,
            as_json=given.as_json,
        )
        return
    described = {
        "llm": given.models.llms,
        "embedding": given.models.embedder,
        "reranking": given.models.reranker,
    }
    engine = given.engine or _only(described)
    if not engine:
        raise ConfigError("give an engine (chunking, embedding, vectors, reranking or llm) or --fit FILE")
    from rich.console import Console
    from rich.table import Table

    from stretto.cli.engines import assemble
    from stretto.cli.saved import profiles_file, save_profile
    from stretto.engines.executables import engine_and_model
    from stretto.engines.profiling import profile_engine
    from stretto.runtime.devices import claim

    if given.save:
        profiles_file()  # there is such a place
    measurable = _measurable(assemble(given.models.with_one_replica(), used=None), engine)
    (replica,) = measurable.replicas
    if replica.runs_in != "loop":
        claim(replica.devices, replica.threads)
    console = Console(stderr=given.as_json, emoji=False)
    table = Table("units", "tokens", "median ms", "min ms", "max ms", "units/s", title=engine)
    with console.status(f"measuring {engine}"):
        measurements, fitted = profile_engine(measurable, partial(_add_row, table))
    if given.as_json:
        rows = [asdict(measurement) for measurement in measurements]
        print(json.dumps({"engine": engine, "rows": rows, "profile": asdict(fitted)}))
    else:
        console.print(table)
        console.print(_in_words(fitted), highlight=False)
    if given.save:
        path = save_profile(engine_and_model(measurable), fitted)
        console.print(f"saved to {path}", markup=False, highlight=False, soft_wrap=True)


def _add_row(table: Table, measured: Measurement) -> None:
    times = (measured.median_s, measured.min_s, measured.max_s)
    tokens = "" if measured.tokens is None else str(measured.tokens)
    table.add_row(
        str(measured.units), tokens, *(f"{1000 * s:.2f}" for s in times), f"{measured.units_per_s:.0f}"
    )


def _in_words(fitted: Profile) -> str:
    """Return a profile as a sum of times."""
    parts = [f"{1000 * fitted.base_s:.2f} ms per call", f"{1000 * fitted.per_unit_s:.3f} ms per unit"]
    if fitted.per_token_s:
        parts[-1] += f" of {fitted.unit_tokens:.0f} tokens, {1e6 * fitted.per_token_s:.1f} µs per token"
    if fitted.per_output_s:
        parts.append(f"{1000 * fitted.per_output_s:.2f} ms per token of output")
    return f"{' + '.join(parts)}; maximum efficient batch {fitted.max_efficient_batch}"


def _only(described: Mapping[str, object]) -> str:
    """Return the one engine that an option describes; an empty text if there are none or several."""
    names = [name for name, option in described.items() if option]
    return names[0] if len(names) == 1 else ""


def _measurable(engines: Assembled, name: str) -> Deployment:
    """Return an engine with the first of its replicas that is no server; with a server if all are.

    Raises:
        ConfigError: there is no such engine.
    """
    known = [deployment.name for deployment in engines.deployments]
    check_name("engine", name, known)
    deployment = engines.named(name)
    replicas = sorted(
        deployment.replicas,
        key=lambda replica: deployment.engine.is_llm and replica.runs_in in ("loop", "ray"),
    )
    return replace(deployment, replicas=tuple(replicas[:1]))
