"""`headstock ab`: the command line."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit

from ...entrypoints.cli import options
from ...entrypoints.cli.groups import grouped
from .options import ClusterOptions, KernelOptions, ReportOptions, VerdictOptions, WorkloadOptions

if TYPE_CHECKING:
    from ..results.store import Store
    from .cluster import Outcome
    from .gathered import Gathered
    from .order import Order

EXIT_GATE = 1


@grouped
def ab(
    arms: Annotated[
        list[str], Argument(metavar="ARM...", help=r"NAME[{options}][+op=pkg:fn]\[@ENV], the baseline first.")
    ],
    kernel: KernelOptions,
    workload: WorkloadOptions,
    verdict: VerdictOptions,
    cluster: ClusterOptions,
    output: ReportOptions,
    verbose: options.Verbose = False,
) -> None:
    """Hold kernels against each other, and say what the measurements carry.

    An ARM is a backend, with options in JSON where wanted, in this environment
    or in that of another Python: cpu, 'cpu{}', 'triton{"num_warps": 8}',
    fast@/venvs/new; +op=pkg:fn puts a function in the place of one AITER op.
    The first is the baseline.

    Numerics come first: an arm that breaks a convention, or whose output is
    wrong, gets no verdict on speed.

    Exit codes: 0 compared; 1 a gate of --fail-if-* has closed, or a task of
    --ray has failed; 2 refused; 130 interrupted, where what was measured until
    then is still printed.
    """
    from ...entrypoints.cli.console import show_log

    show_log(verbose)
    from ..results.saving import keep, stored
    from .order import Order
    from .showing import show, show_gathered

    verdict.check()
    output.check()
    cluster.check()
    command = shlex.join(["headstock", *sys.argv[1:]])
    order = Order(arms=tuple(arms), kernel=kernel, workload=workload, verdict=verdict, command=command)
    order.check(elsewhere=cluster.ray)
    store = stored(output.save)
    if cluster.ray:
        found = _gathered(order, cluster, store)
        show_gathered(found, output)
        closed = bool(found.failures) or any(map(verdict.closed, found.reports))
    else:
        report = order.run()
        show(report, output)
        keep(store, report.to_dict())
        if report.interrupted:
            raise KeyboardInterrupt
        closed = verdict.closed(report)
    if closed:
        raise Exit(EXIT_GATE)


def _gathered(order: Order, cluster: ClusterOptions, store: Store | None) -> Gathered:
    """Compare on the machines of a cluster. What comes home is kept at once, by this process alone."""
    from ...core.engine.lives.ray_cluster import connect
    from ...entrypoints.cli.console import note
    from ..progress import progress
    from ..results.saving import put
    from .cluster import find_nodes, plan, run, taken
    from .gathered import Gathered

    requests = cluster.requests(order.kernel.threads)
    if cluster.ray_address:
        os.environ["RAY_ADDRESS"] = cluster.ray_address  # for whatever speaks to Ray from here on
    ray = connect("--ray")
    errands = plan(order, requests, find_nodes(ray), every_node=cluster.ray_every_node)
    for text in taken(ray, requests):
        note(text)
    outcomes: list[Outcome] = []
    with store or nullcontext(), progress("asking the cluster", len(errands)) as bar:
        for outcome in run(ray, errands, bar):
            outcomes.append(outcome)
            if store is not None and outcome.document is not None:
                put(store, outcome.document)
    return Gathered(command=order.command, baseline=order.arms[0], outcomes=tuple(outcomes))
