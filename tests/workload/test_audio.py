"""Audio in a workload: drawn apart from all else, on top of the text and of images, encoded where images are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simserve.errors import ScenarioError, SimserveError
from simserve.perf.encoder import encoder_seconds
from simserve.scenario.fit import memory_report
from simserve.scenario.load import load
from simserve.scenario.replication import traffic
from simserve.scenario.resolve import resolve
from simserve.scenario.run import run
from simserve.scenario.verify import verify
from simserve.workload.media_spec import AUDIO_PREPROCESS_SECONDS
from simserve.workload.requests import RequestSpecs

IMAGES = "workload.images={sizes: [{width: 512, height: 512}], share: 0.5}"
TURNS = "workload.sessions={turns: 3, think_time: 2 s}"
FEW = "workload.num_requests=60"
DRAWN = ("workload.arrivals=null", "workload.prompt_tokens=null", "workload.output_tokens=null")


def requests(*overrides: str) -> RequestSpecs:
    """Return the requests of the bundled scenario of audio."""
    return traffic(load("voice-assistant", overrides), 0)


def test_audio_comes_on_top_of_the_text() -> None:
    """The prompts of the same scenario without audio are shorter by its tokens alone."""
    ten = ("workload.audio.share=1", "workload.audio.seconds=10", "workload.audio.preprocess_time=0 ms")
    heard, text = requests(*ten), requests("workload.audio=null")

    assert text.audio is None
    assert heard.audio is not None
    assert set(heard.audio.tokens.tolist()) == {130}
    assert (heard.prompt_tokens - heard.audio.tokens).tolist() == text.prompt_tokens.tolist()


def test_one_part_moves_no_other() -> None:
    """Images, or a cache of the encoder, leave it as it was who speaks how long."""
    plain, more = requests(), requests(IMAGES, "workload.audio.cached_share=0.5")
    assert plain.audio is not None
    assert more.audio is not None

    assert np.sort(plain.audio.tokens).tolist() == np.sort(more.audio.tokens).tolist()
    assert plain.audio.count.sum() == more.audio.count.sum()


def test_images_and_audio_add_up() -> None:
    """Tokens, CPU seconds and seconds of the encoders of a request that has both."""
    both = requests(IMAGES, "workload.audio.seconds=10")
    images, audio = both.images, both.audio
    assert images is not None
    assert audio is not None
    assert both.encoder_seconds is not None
    assert both.own_wait is not None

    assert np.count_nonzero((images.count > 0) & (audio.count > 0)) > 100
    np.testing.assert_allclose(both.encoder_seconds, images.encoder_seconds + audio.encoder_seconds)
    np.testing.assert_allclose(both.own_wait, images.preprocess_seconds + audio.preprocess_seconds)
    assert set(np.round(audio.preprocess_seconds[audio.count > 0], 9)) == {round(10 * AUDIO_PREPROCESS_SECONDS, 9)}


def test_what_the_encoder_knows_it_does_not_encode() -> None:
    """All of it cached: tokens as before, and no seconds."""
    cached = requests("workload.audio.cached_share=1")
    assert cached.audio is not None
    assert cached.encoder_seconds is not None

    assert cached.audio.tokens.sum() > 0
    assert cached.encoder_seconds.sum() == 0.0


def test_longer_recordings_take_the_encoder_longer() -> None:
    """In windows of 8 s the time grows in proportion, and a padded encoder takes as long for 1 s as for 30 s."""
    shape = resolve(load("voice-assistant")).shape
    padded = resolve(load("voice-assistant", ["model=voxtral-mini-3b"])).shape

    def seconds(replica: object, length: float) -> float:
        audio = replica.model.audio  # type: ignore[attr-defined]
        heard = audio.recording(length)
        rows = (np.array([float(each)]) for each in (heard.positions, heard.pairs, 1.0))
        return float(encoder_seconds(replica, audio, *rows)[0])  # type: ignore[arg-type]

    assert seconds(shape, 4000.0) == pytest.approx(2 * seconds(shape, 2000.0), rel=0.05)
    assert seconds(padded, 1.0) == seconds(padded, 30.0) < seconds(padded, 31.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model=qwen3-32b"],
            "workload.audio: needs a model that takes audio, and the profile of qwen3-32b has no audio",
        ),
        (["deployment.engine.batching=static"], "workload.audio: is encoded in the steps of continuous batching"),
        (["workload.audio.seconds=0"], "workload.audio.seconds: 0 must be"),
    ],
)
def test_what_hears_nothing_is_refused(overrides: list[str], message: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        run(load("voice-assistant", overrides))
    assert message in str(caught.value)


def test_the_encoder_is_in_memory_unless_it_is_left_out() -> None:
    """With audio and without; not beside a language model alone. In a pool of its own a worker holds it."""
    heard = memory_report(resolve(load("voice-assistant")))
    unheard, alone = ["workload.audio=null"], "deployment.engine.language_model_only=true"
    loaded = memory_report(resolve(load("voice-assistant", unheard)))
    text = memory_report(resolve(load("voice-assistant", [*unheard, alone])))
    pool = memory_report(resolve(load("voice-assistant", ["deployment.encoder_disaggregation={replicas: 1}"])))

    assert heard["parts"]["audio_weights"] == 629_145_600 * 2
    assert loaded["parts"] == heard["parts"]
    assert "audio_weights" not in text["parts"]
    with pytest.raises(ScenarioError, match=r"language_model_only: leaves out the encoder that workload\.audio needs"):
        resolve(load("voice-assistant", [alone]))
    assert any("the audio encoder takes" in line for line in pool["arithmetic"])


def test_turns_hold_what_was_said_before() -> None:
    """The third prompt of a conversation holds the recordings of the first two."""
    ten = ("workload.audio.share=1", "workload.audio.seconds=10", FEW)
    heard, text = requests(TURNS, *ten), requests(TURNS, "workload.audio=null", FEW)
    assert heard.turn is not None

    assert (heard.prompt_tokens - text.prompt_tokens).tolist() == (130 * heard.turn).tolist()


def test_a_pool_encodes_audio_before_the_router() -> None:
    """The steps of the replica are free of it, the wait is counted, and the embeddings cross the link."""
    pool = ["deployment.encoder_disaggregation={replicas: 1, hardware: l4, transfer_latency: 5 ms}", FEW]
    specs, result = requests(*pool), run(load("voice-assistant", pool))
    assert specs.encoder_pool is not None
    block = result.summary["simserve"]["audio"]

    assert specs.encoder_seconds is None
    assert block["mean_transfer_ms"] > 5.0
    assert block["mean_encoder_ms"] > 0.0
    assert 0.0 < block["encoder_utilization"] < 1.0


@pytest.mark.parametrize(
    "more", [[], [IMAGES], [TURNS], ["deployment.encoder_disaggregation={replicas: 1}"], [IMAGES, TURNS]]
)
def test_plane_and_reference_agree(more: list[str]) -> None:
    """Alone, beside images, in conversations, and with a pool of encoders."""
    found = verify(load("voice-assistant", [*more, FEW]), accelerate="off")

    assert found.differing == {}


def test_classes_have_recordings_of_their_own() -> None:
    """One kind of caller speaks, the other types."""
    classes = (
        "workload.classes=[{name: calls, share: 0.5, audio: {seconds: 20}}, {name: chats, share: 0.5}]",
        "workload.audio=null",
    )
    specs = requests(*classes)
    assert specs.audio is not None
    assert specs.request_class is not None

    assert set(specs.audio.tokens[specs.request_class == 0].tolist()) == {260}
    assert not specs.audio.tokens[specs.request_class == 1].any()


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ("arrival_time,prompt_tokens,output_tokens,audio_seconds", ["10; 0.5", "", "30"]),
        ("arrival_time,prompt_tokens,output_tokens,audio_duration_ms", ["10000; 500", "", "30000"]),
    ],
)
@pytest.mark.parametrize("turns", [False, True])
def test_a_trace_may_say_how_long_each_recording_is(tmp_path: Path, head: str, cells: list[str], turns: bool) -> None:
    """130 tokens of 10 s, 7 of half a second; the rows of a conversation stay those of their recordings."""
    path = tmp_path / "t.csv"
    head += ",session" if turns else ""
    rows = [f"{row},100,10,{cell}" + (f",{'aba'[row]}" if turns else "") for row, cell in enumerate(cells)]
    path.write_text("\n".join([head, *rows]), encoding="utf-8")
    recorded = (f"workload.trace={{path: {path}, format: columns}}", *DRAWN, "workload.num_requests=null")
    words = (*recorded, "workload.audio={preprocess_time: 1 ms}", *(["workload.sessions={}"] if turns else []))
    heard = requests(*words)
    assert heard.audio is not None
    order = [0, 2, 1] if turns else [0, 1, 2]

    assert heard.audio.count.tolist() == [[2, 0, 1][row] for row in order]
    assert heard.audio.tokens.tolist() == [[137, 0, 390][row] for row in order]
    assert heard.audio.preprocess_seconds.tolist() == pytest.approx([[0.0105, 0, 0.03][row] for row in order])
    assert verify(load("voice-assistant", list(words)), accelerate="off").differing == {}
    with pytest.raises(ScenarioError, match=r"workload.audio.seconds: is not used: the trace says how long recordings"):
        requests(*words, "workload.audio={seconds: 10}")


@pytest.mark.parametrize("cell", ["long", "0", "-3", "nan", "1e9", "3; x"])
def test_a_length_of_a_recording_that_is_none_is_named(tmp_path: Path, cell: str) -> None:
    """With its row, its column and the remedy."""
    path = tmp_path / "t.csv"
    path.write_text(f"arrival_time,prompt_tokens,output_tokens,audio_seconds\n0,100,10,{cell}\n", encoding="utf-8")

    with pytest.raises(SimserveError, match=r"row 2, audio_seconds: .* is not a list of lengths of recordings"):
        requests(f"workload.trace={{path: {path}}}", *DRAWN, "workload.num_requests=null", "workload.audio={}")


def test_audio_needs_lengths_from_somewhere() -> None:
    """From the scenario, or from a trace."""
    with pytest.raises(
        ScenarioError, match=r"has audio without seconds; give audio.seconds, or a trace that says them"
    ):
        requests("workload.audio={}")
