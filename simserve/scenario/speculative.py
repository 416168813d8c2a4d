"""Speculative decoding in a scenario, and what follows: what drafts, how many drafts are accepted."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simserve import rng
from simserve.errors import InputError, ScenarioError
from simserve.metrics.features import SpeculationFacts
from simserve.perf.operators import PricedDeployment
from simserve.perf.shape import ReplicaShape, Speculation
from simserve.perf.tables import price
from simserve.profiles.catalog import load_model
from simserve.profiles.model import ModelProfile
from simserve.profiles.model_names import AskedQuantization
from simserve.validation import FrozenModel
from simserve.workload.requests import RequestSpecs

if TYPE_CHECKING:
    from pathlib import Path

    from simserve.sim.totals import SpeculationTotals

MAX_SPECULATIVE_TOKENS = 32  # More drafts than any engine is run with.


Share = Annotated[float, Field(ge=0, le=1)]


class SpeculativeSpec(FrozenModel):
    """Speculative decoding: the drafter, the number of draft tokens, and how many of them the target accepts.

    Acceptance is given in one of two forms: `acceptance_rate`, with or without `acceptance_decay`, or
    `acceptance_per_position`.
    """

    method: Literal["draft_model", "ngram", "eagle", "mtp"]
    """What drafts: a small model, a look-up of the last tokens in the context, an EAGLE layer, or the model's own
    multi-token-prediction layer."""
    draft_model: str | None = None
    """`draft_model`: the small model, as `model` names one."""
    draft_quantization: AskedQuantization = "auto"
    """`draft_model` and `eagle`: format of the draft's linear weights. `auto`: as its checkpoint is stored; for an
    EAGLE layer 16 bit. An MTP layer has the format in which the target's checkpoint stores it."""
    draft_tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    """`draft_model`: GPUs that share the draft, 1 or those of the target. Absent: those of the target."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_SPECULATIVE_TOKENS)]
    """Drafts per step, k; the target verifies k + 1 tokens of each sequence at once."""
    acceptance_rate: Share | None = None
    """Probability that a draft is accepted if all before it were: for the first draft, or for all without
    `acceptance_decay`. This is not the share of all drafts that vLLM reports, which is lower."""
    acceptance_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Factor on `acceptance_rate` from one position to the next: later drafts are worse. Absent: 1."""
    acceptance_per_position: tuple[Share, ...] | None = None
    """Share of steps in which each position was accepted, first to last, as vLLM's per-position acceptance rates: not
    conditional on the previous position, so they never rise."""

    @model_validator(mode="after")
    def _check_acceptance(self) -> Self:
        sources = (self.acceptance_rate, self.acceptance_per_position)
        if sources.count(None) != 1:
            given = "neither" if self.acceptance_rate is None else "both"
            raise ValueError(
                f"needs exactly one of acceptance_rate and acceptance_per_position, and has {given}; EAGLE-3 layers on "
                "coding prompts were measured at acceptance_rate 0.81 with acceptance_decay 0.93, MTP layers at 0.88 "
                "with 0.87 (means, calibration/speculation.md)"
            )
        shares = self.acceptance_per_position
        if shares is None:
            return self
        if self.acceptance_decay is not None:
            raise ValueError("acceptance_decay goes with acceptance_rate; acceptance_per_position says each position")
        if len(shares) != self.num_speculative_tokens:
            raise ValueError(
                f"acceptance_per_position must have num_speculative_tokens (={self.num_speculative_tokens}) "
                f"entries, and has {len(shares)}"
            )
        if any(later > earlier for earlier, later in pairwise(shares)):
            raise ValueError(
                "acceptance_per_position must not rise: a draft counts only if all before it did. These are shares "
                "of steps, as vLLM reports them; multiply conditional probabilities up"
            )
        return self

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if (self.method == "draft_model") != (self.draft_model is not None):
            needs = (
                "needs draft_model, the name of a small model" if self.draft_model is None else "takes no draft_model"
            )
            raise ValueError(f"method {self.method} {needs}")
        if self.draft_tensor_parallel_size is not None and self.method != "draft_model":
            raise ValueError(f"draft_tensor_parallel_size goes with method draft_model, not {self.method}")
        if self.draft_quantization != "auto" and self.method in ("ngram", "mtp"):
            has = "has no weights" if self.method == "ngram" else "has the target's format"
            raise ValueError(f"draft_quantization goes with draft_model and eagle; {self.method} {has}")
        return self

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """Probability that each draft is accepted, given that all before it were; see `workload.acceptance`."""
        from simserve.workload.acceptance import conditional_acceptance, decaying_acceptance

        if self.acceptance_per_position is not None:
            return conditional_acceptance(self.acceptance_per_position)
        assert self.acceptance_rate is not None
        decay = 1.0 if self.acceptance_decay is None else self.acceptance_decay
        return decaying_acceptance(self.acceptance_rate, decay, self.num_speculative_tokens)


def load_draft(name: str, folder: Path | None) -> ModelProfile:
    """Return the profile of a ``draft_model``.

    Raises:
        InputError: It has no profile; names the key.
    """
    try:
        return load_model(name, folder)
    except InputError as failure:
        if failure.file is not None:
            raise
        key = "deployment.speculative.draft_model"
        raise ScenarioError(failure.rule, key=key, value=failure.value, remedy=failure.remedy) from None


def with_speculation(shape: ReplicaShape, spec: SpeculativeSpec, folder: Path | None) -> ReplicaShape:
    """Return a replica that decodes speculatively, checked.

    Every seat must get its k + 1 tokens in a step, so seats beyond what the token budget covers are removed, and a note
    says so.

    Raises:
        InputError: The draft model is missing, or the deployment cannot speculate as requested.
    """
    _check_engine(shape, spec)
    count = spec.num_speculative_tokens
    engine, notes = shape.engine, []
    seats = engine.max_num_batched_tokens // (1 + count)
    if seats < 1:
        rule = f"must be at least num_speculative_tokens + 1 (={1 + count})"
        raise ScenarioError(rule, key="deployment.engine.max_num_batched_tokens", value=engine.max_num_batched_tokens)
    if engine.max_num_seqs > seats:
        notes.append(
            f"max_num_seqs is {seats}, not {engine.max_num_seqs}: max_num_batched_tokens "
            f"{engine.max_num_batched_tokens} holds {1 + count} tokens each of no more sequences"
        )
        most = min(engine.static_batch_size, seats)
        engine = engine.model_copy(update={"max_num_seqs": seats, "static_batch_size": most})
    if spec.method == "ngram":
        # The look-up needs this step's tokens before the next one is prepared: no host time overlaps with the GPU.
        engine = engine.model_copy(update={"host_overlap": 0.0})
    target = replace(shape, engine=engine)
    # Drafts are not masked, verified tokens are; and drafts see no images and hear no audio.
    draft = _draft(replace(target, masks=None, encodes_images=False, encodes_audio=False), spec, folder, notes)
    if draft is not None:
        _ = draft.precision
    return replace(
        target,
        speculation=Speculation(method=spec.method, num_speculative_tokens=count, draft=draft, notes=tuple(notes)),
    )


def _check_engine(shape: ReplicaShape, spec: SpeculativeSpec) -> None:
    engine, key = shape.engine, "speculative"
    if engine.batching == "static":
        raise ScenarioError("needs batching: continuous", key=key, remedy="set deployment.engine.batching=continuous")
    if engine.kv_allocation not in ("paged", "static"):
        rule = "needs kv_allocation: paged or static"
        raise ScenarioError(rule, key=key, remedy="set deployment.engine.kv_allocation=paged")
    if engine.preemption_mode == "swap":
        rule = "is not simulated with preemption_mode swap"
        raise ScenarioError(rule, key=key, remedy="use preemption_mode recompute")
    if shape.pipeline_parallel_size > 1:
        rule = "must be 1 with speculative decoding: the draft would wait for every stage"
        raise ScenarioError(rule, key="pipeline_parallel_size", value=shape.pipeline_parallel_size)
    if shape.decode_context_parallel_size > 1:
        _check_context_ranks(shape, spec)


def _check_context_ranks(shape: ReplicaShape, spec: SpeculativeSpec) -> None:
    """Check that drafts and contexts that ranks divide go together.

    vLLM's kernels of latent attention verify several tokens of a request over divided contexts. FlashInfer's for
    key-value heads do not (``supports_dcp_with_varlen`` of v1/attention/backends/flashinfer.py, 0.33.0), and drafters
    with attention of their own keep what each method keeps.

    Raises:
        ScenarioError: They do not, or are not simulated together.
    """
    key, size = "decode_context_parallel_size", shape.decode_context_parallel_size
    if "decode_context_parallel_drafts" not in shape.engine.features:
        named = f"{shape.engine.name} {shape.engine.requested_version or shape.engine.version}"
        rule = f"must be 1 with speculative decoding: {named} is not known to verify drafts over divided contexts"
        raise ScenarioError(rule, key=key, value=size, remedy="leave one of the two out")
    if shape.model.mla is None:
        rule = "must be 1 with speculative decoding: of key-value heads, verified tokens run as prompts there"
        raise ScenarioError(rule, key=key, value=size, remedy="leave one of the two out")
    if spec.method not in ("mtp", "ngram"):
        rule = f"must be 1 with drafts by {spec.method}: whether the drafter divides its own keys is not simulated"
        raise ScenarioError(rule, key=key, value=size, remedy="use mtp or ngram, or leave one of the two out")


def _draft(target: ReplicaShape, spec: SpeculativeSpec, folder: Path | None, notes: list[str]) -> ReplicaShape | None:
    from simserve.perf.speculation import draft_shape, layer_shape

    ranks = target.tensor_parallel_size
    if spec.method == "ngram":
        return None
    if spec.method == "mtp":
        if not target.model.num_mtp_layers:
            rule = f"is mtp, and {target.model.name} has no layer for multi-token prediction"
            remedy = "use eagle, draft_model or ngram; in a profile of your own set num_mtp_layers"
            raise ScenarioError(rule, key="deployment.speculative.method", remedy=remedy)
        return layer_shape(target, target.model.mtp_format(target.quantization), is_dense=False)
    asked_format = spec.draft_quantization
    if spec.method == "eagle":
        return layer_shape(target, "none" if asked_format == "auto" else asked_format, is_dense=True)
    assert spec.draft_model is not None
    model = load_draft(spec.draft_model, folder)
    asked = ranks if spec.draft_tensor_parallel_size is None else spec.draft_tensor_parallel_size
    if asked not in (1, ranks):
        rule = f"must be 1 or the target's tensor_parallel_size (={ranks})"
        raise ScenarioError(rule, key="deployment.speculative.draft_tensor_parallel_size", value=asked)
    try:
        model.attention_gemms(asked)
    except InputError as failure:
        rule = failure.rule.replace("of the model", f"of {model.name}")
        key, remedy = "deployment.speculative.draft_tensor_parallel_size", "the draft may run on 1 GPU"
        raise ScenarioError(rule, key=key, value=asked, remedy=remedy) from None
    if model.vocab_size != target.model.vocab_size:
        notes.append(
            f"{model.name} has a vocabulary of {model.vocab_size:,} tokens and {target.model.name} one of "
            f"{target.model.vocab_size:,}: an engine must translate drafts from one to the other"
        )
    if model.max_position_embeddings < target.engine.max_model_len:
        notes.append(
            f"{model.name} is made for {model.max_position_embeddings:,} tokens, and requests may reach "
            f"{target.engine.max_model_len:,}: beyond, real drafts are worse"
        )
    if model.num_active_parameters >= target.model.num_active_parameters:
        notes.append(f"{model.name} is no smaller than {target.model.name}: drafting costs as much as it saves")
    quantization = model.stored.format if asked_format == "auto" else asked_format
    return draft_shape(target, model, quantization, asked)


def with_paces(specs: RequestSpecs, spec: SpeculativeSpec, seed: int, replication: int) -> RequestSpecs:
    """Return the requests of one run with a pace drawn for each, from a separate random stream."""
    from simserve.engine.progress import GRID
    from simserve.workload.acceptance import draw_paces

    asked = np.where(specs.max_tokens > 0, specs.max_tokens, specs.output_tokens)
    tokens = np.minimum(specs.output_tokens, asked)
    generator = rng.stream(seed, "speculation", replication)
    return replace(specs, pace=draw_paces(tokens, spec.conditional_acceptance, generator, GRID))


def speculation_facts(
    spec: SpeculativeSpec, shape: ReplicaShape, priced: PricedDeployment, totals: SpeculationTotals
) -> SpeculationFacts:
    """Return what a summary says about speculative decoding, besides its counts.

    The speed-up applies to decode steps at the run's mean batch and context, against the same batch without drafts.
    """
    from simserve.perf.speculation import decode_speedup
    from simserve.workload.acceptance import expected_tokens

    tokens = expected_tokens(spec.conditional_acceptance)
    batch = break_even = gain = None
    if totals.num_drafts:
        plain = price(replace(shape, speculation=None))
        batches = np.arange(1, shape.engine.max_num_seqs + 1)
        context = totals.context_tokens / totals.num_drafts
        gains = decode_speedup(priced, plain, tokens, batches.astype(np.float64), context)
        batch = totals.num_drafts / totals.num_steps
        gain = float(np.interp(batch, batches, gains))
        slower = np.flatnonzero(gains < 1.0)
        break_even = int(batches[slower[0]]) if len(slower) else None
    return SpeculationFacts(
        method=spec.method,
        draft_model=spec.draft_model,
        num_speculative_tokens=spec.num_speculative_tokens,
        expected_tokens=tokens,
        mean_batch=batch,
        decode_speedup=gain,
        break_even_batch=break_even,
    )


def draft_fields(shape: ReplicaShape) -> dict[str, int]:
    """Return what drafts hold and find where blocks are counted one by one: slots ahead, unless they are n-grams."""
    drafting = shape.speculation
    if drafting is None or drafting.method == "ngram":
        return {}
    drops = drafting.is_layer and not shape.engine.caches_results
    return {"num_lookahead_tokens": drafting.num_speculative_tokens, "drops_last_block": drops}
