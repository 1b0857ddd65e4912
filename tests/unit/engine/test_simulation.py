"""Random playbooks under random schedules, in the simulated world: what must hold whatever happens."""

from __future__ import annotations

from engine_playbooks import Case, cases, simulated
from hypothesis import given
from hypothesis import strategies as st
from simulator import Chaos, World

SEEDS = st.integers(0, 2**16)
CHAOS = st.builds(
    Chaos,
    lost=st.sampled_from([0.0, 0.2, 0.5]),
    doubled=st.sampled_from([0.0, 0.3]),
    crashes=st.integers(0, 4),
    slow=st.integers(0, 3),
    elsewhere=st.booleans(),
)


@simulated(100)
@given(case=cases(), seed=SEEDS, chaos=CHAOS)
def test_what_must_hold_holds_under_any_schedule(case: Case, seed: int, chaos: Chaos) -> None:
    World(case.plan, seed=seed, chaos=chaos, sources=case.sources).run()
