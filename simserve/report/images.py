"""What images cost a run, as lines of text."""

from __future__ import annotations

from simserve.metrics.result import RunResult
from simserve.report.quantities import count, counted, number, share


def image_lines(result: RunResult) -> list[str]:
    """Return the tokens of images, and the time they take before a first token; empty without images."""
    block = result.summary["simserve"].get("images")
    if block is None or not block["images"]:
        return []
    lines = [
        f"{counted(block['images'], 'image')} in {counted(block['requests'], 'request')}: {count(block['tokens'])} "
        f"tokens, {share(block['token_share'])} of all prompts (estimate: encoder as a roofline, CPU time published)",
        f"a request with images: {number(block['mean_preprocess_ms'])} ms to scale them, "
        f"{number(block['mean_encoder_ms'])} ms to encode them",
    ]
    if block["encoder_utilization"] is not None:
        lines.append(
            f"in an encoder pool, busy {share(block['encoder_utilization'])}: "
            f"{number(block['mean_encoder_wait_ms'])} ms for a worker, {number(block['mean_transfer_ms'])} ms for the "
            f"embeddings on their way"
        )
    if block["ttft_share"] is not None:
        lines.append(f"together {share(block['ttft_share'])} of TTFT, over all requests")
    return lines
