"""The passes that are predicted to pay, beside none and all, for every app, load, and sharing of cores."""

from __future__ import annotations

import pytest
from support.loaded_runs import APPS, LAPTOP, SERVERS, Load, Speeds, mean_s

from stretto.graph.passes.pipeline import PASSES
from stretto.graph.passes.weigh import WEIGHED

CHOICES = {"none": (), "all": tuple(PASSES), "weighed": WEIGHED}
LOADS = (Load(1), Load(4), Load(6, 0.4))


@pytest.mark.parametrize(
    ("speeds", "shares_cores"),
    [
        pytest.param(LAPTOP, True, id="laptop, shared cores"),
        pytest.param(SERVERS, False, id="servers, own cores", marks=pytest.mark.long),
        pytest.param(LAPTOP, False, id="laptop, own cores", marks=pytest.mark.long),
        pytest.param(SERVERS, True, id="servers, shared cores", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("app", APPS)
def test_weighed_passes_are_never_slower_than_none_or_all(
    app: str, speeds: Speeds, shares_cores: bool
) -> None:
    for load in LOADS:
        means_s: dict[str, float] = {}
        outputs = []
        for name, passes in CHOICES.items():
            means_s[name], found = mean_s(app, passes, load, speeds, shares_cores=shares_cores, seed=0)
            outputs.append(found)
        assert outputs[0] == outputs[1] == outputs[2], load
        assert means_s["weighed"] <= 1.01 * means_s["none"], (load, means_s)
        assert means_s["weighed"] <= 1.01 * means_s["all"], (load, means_s)


def test_beside_others_less_is_more() -> None:
    """Prefills ahead make eight queries wait for each other, so that all passes together are slower where
    queries are served by what waits of them alone.
    """
    all_s, weighed_s = (
        mean_s("advanced", CHOICES[name], Load(8), LAPTOP, shares_cores=True, seed=0, policy="least_work")[0]
        for name in ("all", "weighed")
    )
    assert weighed_s < 0.98 * all_s
