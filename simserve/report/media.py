"""What images and recordings cost a run, as lines of text."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report.quantities import count, counted, number, share


def image_lines(result: RunResult) -> list[str]:
    """Return the tokens of images, and the time they take before a first token; empty without images."""
    return _lines(result, "images", "images", "image", ("a request with images", "to scale them"))


def audio_lines(result: RunResult) -> list[str]:
    """Return the tokens of recordings, and the time they take before a first token; empty without them."""
    return _lines(result, "audio", "recordings", "recording", ("a request with audio", "for the spectrogram"))


def _lines(result: RunResult, key: str, many: str, one: str, words: tuple[str, str]) -> list[str]:
    block = result.summary["simserve"].get(key)
    if block is None or not block[many]:
        return []
    whose, prepared = words
    source = "CPU time published" if key == "images" else "CPU time without decoding"
    lines = [
        f"{counted(block[many], one)} in {counted(block['requests'], 'request')}: {count(block['tokens'])} "
        f"tokens, {share(block['token_share'])} of all prompts (estimate: encoder as a roofline, {source})",
        f"{whose}: {number(block['mean_preprocess_ms'])} ms {prepared}, "
        f"{number(block['mean_encoder_ms'])} ms to encode them",
    ]
    if block["encoder_utilization"] is not None:
        workers, most = block["mean_encoders"], block["peak_encoders"]
        size = f", of {number(workers)} workers on average and {most} at most" if workers != most else ""
        lines.append(
            f"in an encoder pool{size}, busy {share(block['encoder_utilization'])}: "
            f"{number(block['mean_encoder_wait_ms'])} ms for a worker, {number(block['mean_transfer_ms'])} ms for the "
            f"embeddings on their way"
        )
    if block["ttft_share"] is not None:
        lines.append(f"together {share(block['ttft_share'])} of TTFT, over all requests")
    return lines
