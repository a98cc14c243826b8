"""`Selector`: the provider of attention backends that the composition root hands to the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.attention import (
    AttentionBackend,
    AttentionChoice,
    AttentionSelection,
    AttentionSpec,
    Device,
    Rejection,
    by_phase,
    subdivided,
)
from ..core.attention.composite import PhaseOptions
from ..core.errors import BackendError, InvalidInput
from ..plugins import ALIASES, AUTO, Failure, Offer, Plugins
from ..plugins.names import key
from .called import Served, check_called, first_broken, noted
from .complaints import disputed, named, refused
from .judge import Judge, Terms
from .policy import MASKED, PHASES, Policy, Wish, Wishes
from .ranking import LAST_RESORT, ranked
from .replacement import replacements
from .settle import Pick, Settlement, Settler, Task
from .tuned import Tuned


class Selector:
    """Implements `AttentionProvider`: the user's policy, then measurements, then the ranking.

    A backend that was named is used or refused with all reasons, never replaced. A choice left open goes to the first
    that fits. Equal questions have equal answers, whatever the order in which plugins were found.
    """

    def __init__(self, plugins: Plugins, policy: Policy | None = None, *, tuned: Tuned | None = None) -> None:
        self.plugins = plugins
        self.policy = policy or Policy()
        self._tuned = tuned
        self._composites: dict[tuple[type[AttentionBackend[Any]], ...], type[AttentionBackend[Any]]] = {}
        self._divided: dict[tuple[type[AttentionBackend[Any]], int], type[AttentionBackend[Any]]] = {}
        self._built: dict[Offer, str] = {}
        """Why a backend could not be built here; ``""`` where it was."""

    def select(
        self, specs: Mapping[str, AttentionSpec], device: Device, block_size: int | None = None
    ) -> AttentionSelection:
        """A backend for each layer of `specs`. All layers of a model are asked for at once, a draft model's too.

        What is chosen is built where that is still to be done; what cannot be is as good as not installed, and so is a
        package's function in the place of an op that does not fit. Plugins that observe are told. Raises `BackendError`
        with all reasons, naming the layers, and `InvalidInput` for a wrong policy or options.
        """
        settlement, judge = self._settle(specs, device, block_size)
        while not (self._build(settlement.picks) and self._load_ops(settlement, judge)):
            settlement, judge = self._settle(specs, device, block_size)
        selection = self._selection(specs, settlement, judge)
        self.plugins.hooks.selected(selection, device)
        return selection

    def propose(
        self, specs: Mapping[str, AttentionSpec], device: Device, block_size: int | None = None
    ) -> AttentionSelection:
        """What `select` would answer, as far as that is known; nothing is built, and nobody is told."""
        return self._selection(specs, *self._settle(specs, device, block_size))

    def _settle(
        self, specs: Mapping[str, AttentionSpec], device: Device, block_size: int | None
    ) -> tuple[Settlement, Judge]:
        tasks = self._tasks(specs, device)
        if any(task.named is None for task in tasks):
            self._try_plugins()
        judge, ranking = self.judge(device, block_size), ranked(device, self.plugins)
        offers = self.offers(ranking)
        settlement = Settler(judge, ranking, lambda task: self._measured(task, judge, ranking)).settle(
            tasks,
            block_size,
            complain=lambda refusals: refused(refusals, judge, offers, ranking),
            dispute=lambda picks: disputed(picks, judge),
        )
        return settlement, judge

    def _build(self, picks: Sequence[Pick]) -> bool:
        """Build what was picked and has not been yet; False where one cannot be."""
        new = {pick.offer for pick in picks if pick.offer not in self._built}
        for offer in new:
            result = self.plugins.guard.attempt(lambda offer=offer: _build_error(offer))
            self._built[offer] = f"build() raised {result}" if isinstance(result, Failure) else result
        return not any(self._built[offer] for offer in new)

    def _load_ops(self, settlement: Settlement, judge: Judge) -> bool:
        """Load functions in the place of ops where they are to run; False where a package's is left out from now on."""
        found = None if judge.device.assumed else first_broken(judge, _served(settlement, judge))
        if found is None:
            return True
        replacement, problem = found
        if replacement.record is None:
            raise BackendError(problem)
        self.plugins.ops.fail(replacement.record, problem)
        return False

    def _selection(
        self, specs: Mapping[str, AttentionSpec], settlement: Settlement, judge: Judge
    ) -> AttentionSelection:
        self._warn_unselected(settlement.picks)
        check_called(judge, _served(settlement, judge), self.plugins.backends.offers)
        return AttentionSelection(
            choices=self._choices(specs, settlement, judge),
            block_size=settlement.block_size,
            layout=judge.layouts[settlement.layout],
            notes=tuple(
                dict.fromkeys(
                    (
                        *(note for pick in settlement.picks for note in self._notes(pick, settlement, judge)),
                        *noted(judge, _served(settlement, judge)),
                    )
                )
            ),
        )

    def judge(self, device: Device, block_size: int | None = None) -> Judge:
        """Who answers what fits on `device`.

        Raises `BackendError` for options of an unknown backend, `InvalidInput` for functions in the place of no op.
        """
        options: dict[Offer, Mapping[str, object]] = {}
        for name, values in self.policy.options.items():
            offer = self.plugins.backends.find(name)
            if offer in options:
                raise InvalidInput("attention_backend_config", f"has options for {offer.label} twice")
            options[offer] = values
        unbuilt = {offer: reason for offer, reason in self._built.items() if reason}
        ops = replacements(self.plugins, device, self.policy.aiter_ops)
        return Judge(device, self.plugins.hooks.layouts(), options, self.plugins.guard, unbuilt, block_size, ops)

    def offers(self, ranking: Sequence[Offer]) -> tuple[Offer, ...]:
        """All backends: first those that are chosen automatically, in their order."""
        return (*ranking, *(offer for offer in self.plugins.backends.offers if offer not in ranking))

    def _tasks(self, specs: Mapping[str, AttentionSpec], device: Device) -> list[Task]:
        """What has to be found; raises `BackendError` for a name nobody offers, whether or not a layer would get it."""
        for rule in self.policy.rules:
            for backend in rule.backends.values():
                self._named(backend)
        layers: dict[tuple[AttentionSpec, Wishes], list[str]] = {}
        for name, wishes in self.policy.wishes(specs).items():
            layers.setdefault((specs[name], wishes), []).append(name)
        tasks: list[Task] = []
        for (spec, (decode, prefill, masked)), names in layers.items():
            wished: dict[str, Wish | None] = {"decode": decode, "prefill": prefill}
            offers = {phase: wish and self._named(wish.backend) for phase, wish in wished.items()}
            if masked is not None:
                plain = replace(spec, masks=frozenset())
                tasks += [_task(names, plain, phase, offers[phase], [wish]) for phase, wish in wished.items()]
                tasks.append(_task(names, spec, MASKED, self._named(masked.backend), [masked]))
            elif offers["decode"] is offers["prefill"] and not (offers["decode"] is None and self._apart(spec, device)):
                tasks.append(_task(names, spec, "", offers["decode"], [decode, prefill]))
            else:
                tasks += [_task(names, spec, phase, offers[phase], [wish]) for phase, wish in wished.items()]
        return tasks

    def _named(self, backend: str) -> Offer | None:
        return None if key(backend) == AUTO else self.plugins.backends.find(backend)

    def _try_plugins(self) -> None:
        """Import every plugin's backend, so that a broken one is told of, though the choice may not need it."""
        for offer in self.plugins.backends.offers:
            if not offer.record.builtin:
                offer.load()

    def _apart(self, spec: AttentionSpec, device: Device) -> bool:
        """Whether the phases of a layer were measured to be for different backends."""
        found = [self._tuned.fastest(spec, device, phase) for phase in PHASES] if self._tuned else []
        return len({measured.backend for measured in found if measured}) > 1

    def _measured(self, task: Task, judge: Judge, ranking: Sequence[Offer]) -> tuple[Offer, str] | None:
        """Who was measured to be fastest for a task that is left open, and why.

        That choice stays where a backend has come or changed since: which of them is faster nobody knows, so it is
        said, and how to find out.
        """
        found = self._tuned.fastest(task.spec, judge.device, task.phase or PHASES[0]) if self._tuned else None
        offer = self.plugins.backends.get(found.backend) if found else None
        if found is None or offer is None:
            return None
        others = [other for other in ranking if other.label not in LAST_RESORT | found.known]
        new = ", ".join(other.label for other in others if not judge.reasons(other, task.spec, Terms()))
        if not new:
            return offer, found.why
        self.plugins.guard.warn(
            f"{offer.label} is used, as headstock tune chose it when {new} was not measured or was another version; "
            "run headstock tune again"
        )
        return offer, f"{found.why}; not measured then: {new}"

    def _tuned_options(self, pick: Pick, judge: Judge) -> dict[str, Any]:
        """The configuration in which the picked backend was measured to be fastest, for the pick's phases; none where
        the user gives the backend options."""
        label, spec, found = pick.offer.label, pick.task.spec, dict[str, Any]()
        if self._tuned is None or any(self.plugins.backends.find(name) is pick.offer for name in self.policy.options):
            return found
        for phase in (pick.task.phase,) if pick.task.phase in PHASES else PHASES:
            found |= self._tuned.options(label, spec, judge.device, phase)
        try:
            judge.options(pick.offer, found)
        except InvalidInput as refusal:
            self.plugins.guard.warn(f"the tuned configuration is not used: {refusal}; run headstock tune again")
            return {}
        return found

    def _choices(
        self, specs: Mapping[str, AttentionSpec], settlement: Settlement, judge: Judge
    ) -> dict[str, AttentionChoice]:
        by_layer: dict[str, list[Pick]] = {name: [] for name in specs}
        for pick in settlement.picks:
            for name in pick.task.layers:
                by_layer[name].append(pick)
        return {name: self._choice(parts, settlement.block_size, judge) for name, parts in by_layer.items()}

    def _choice(self, parts: list[Pick], block_size: int, judge: Judge) -> AttentionChoice:
        offers = [pick.offer for pick in parts]
        configured = [self._tuned_options(pick, judge) for pick in parts]
        if all(offer is offers[0] for offer in offers):
            backend, cls = offers[0].label, self._class(parts[0], block_size, judge)
            options = judge.options(offers[0], {name: v for tuned in configured for name, v in tuned.items()})
        else:
            backend = ",".join(f"{pick.task.phase}={pick.offer.label}" for pick in parts)
            cls = self._composite(tuple(self._class(pick, block_size, judge) for pick in parts))
            options = PhaseOptions(
                **{p.task.phase: judge.options(p.offer, tuned) for p, tuned in zip(parts, configured, strict=True)}
            )
        origins = [_origin(pick, tuned) for pick, tuned in zip(parts, configured, strict=True)]
        rejected = dict.fromkeys(rejection for pick in parts for rejection in pick.rejected)
        return AttentionChoice(
            backend=backend,
            cls=cls,
            distribution=" and ".join(dict.fromkeys(pick.offer.record.package for pick in parts)),
            origin="; ".join(origins),
            options=options,
            rejected=tuple[Rejection, ...](rejected),
        )

    def _class(self, pick: Pick, block_size: int, judge: Judge) -> type[AttentionBackend[Any]]:
        """The picked class, or one over it that divides the cache's blocks; one a size, so that layers share it."""
        cls, block = _loaded(pick.offer), judge.kernel_block(pick.offer, block_size)
        if pick.task.spec.kv_source != "cache" or block == block_size:
            return cls
        if (cls, block) not in self._divided:
            self._divided[cls, block] = subdivided(cls, block)
        return self._divided[cls, block]

    def _composite(self, parts: tuple[type[AttentionBackend[Any]], ...]) -> type[AttentionBackend[Any]]:
        """One class for the same parts, so that layers which have them share an instance."""
        if parts not in self._composites:
            self._composites[parts] = by_phase(*parts)
        return self._composites[parts]

    def _notes(self, pick: Pick, settlement: Settlement, judge: Judge) -> Iterator[str]:
        """What the log should say about a pick beyond its origin."""
        offer, task, size = pick.offer, pick.task, settlement.block_size
        for asked in task.asked:
            if key(ALIASES.get(key(asked), asked)) != key(asked):
                yield f"{asked} is called {offer.label} here"
        for other in self.plugins.backends.offers:
            if other is not offer and other.record.builtin and key(other.record.name) == key(offer.record.name):
                yield f"{offer.label} of {offer.record.package} takes the place of the built-in backend, as asked"
        if task.spec.kv_source == "cache" and (block := judge.kernel_block(offer, size)) != size:
            yield f"{offer.label} reads blocks of {size} as {size // block} of {block} each"
        if task.named is None and offer.label in LAST_RESORT:
            yield f"{offer.label} computes {named(task.layers)}, as nothing faster fits: right, but slow"
        sizes = judge.standing(offer)[1].block_sizes
        if task.spec.kv_source == "cache" and task.spec.block_size != size and task.spec.block_size not in sizes:
            yield f"the block size is {size} instead of {task.spec.block_size}: {offer.label} takes {sizes}"

    def _warn_unselected(self, picks: Sequence[Pick]) -> None:
        chosen = {pick.offer for pick in picks}
        for name in self.policy.options:
            if self.plugins.backends.find(name) not in chosen:
                self.plugins.guard.warn(f"attention_backend_config has options for {name}, which no layer uses")


def _task(
    names: list[str], spec: AttentionSpec, phase: str, named: Offer | None, wishes: Sequence[Wish | None]
) -> Task:
    asked = [wish for wish in wishes if wish]
    return Task(
        layers=tuple(names),
        spec=spec,
        phase=phase,
        named=named,
        asked=tuple(wish.backend for wish in asked),
        origin=" and ".join(dict.fromkeys(wish.origin for wish in asked)),
    )


def _origin(pick: Pick, tuned: Mapping[str, Any]) -> str:
    """Who decided, for which phase, and on what configuration."""
    options = ", ".join(f"{name}={value}" for name, value in tuned.items())
    origin = f"{pick.origin}; tuned to {options}" if options else pick.origin
    return f"{pick.task.phase}: {origin}" if pick.task.phase else origin


def _served(settlement: Settlement, judge: Judge) -> list[Served]:
    """Who computes what, the layers with blocks as their backends see them."""
    return [
        (p.offer, replace(p.task.spec, block_size=judge.kernel_block(p.offer, settlement.block_size)))
        for p in settlement.picks
    ]


def _build_error(offer: Offer) -> str:
    """Why it cannot be built; empty where it is."""
    try:
        _loaded(offer).build()
    except BackendError as error:
        return str(error)
    return ""


def _loaded(offer: Offer) -> type[AttentionBackend[Any]]:
    cls = offer.load()
    assert cls is not None  # the judge has passed it
    return cls
