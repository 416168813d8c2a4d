"""The fit of attention finds the seconds that a known curve gives."""

from __future__ import annotations

import numpy as np

from calibration.laboratory.fits.attention_fit import PREFILL_RANGES, Calls, fit, predict, wide_share
from calibration.laboratory.fits.attention_tables import GPUS
from simserve.perf.attention_curve import Heads
from simserve.profiles.kernel_curves import PrefillAttentionCurve


def test_a_fit_of_prefill_reproduces_the_curve_behind_the_calls() -> None:
    """Calls made from known constants are predicted to 1 %."""
    batch, length, num = (grid.ravel() for grid in np.meshgrid([1.0, 4, 16], [64.0, 512, 2048, 8192], [8.0, 16, 32]))
    layer = Heads(num_heads=num, num_kv_heads=np.full_like(num, 8.0), width=128.0, kv_bytes=4096.0)
    blank = Calls(layer, batch, length, np.full_like(batch, np.inf), np.ones_like(batch))
    truth = PrefillAttentionCurve.model_construct(
        start=12e-6, compute=0.7, extra_width=20.0, query_element=3e-12, kv_element=5e-12, tile_compute=1.5, wave=1e-6
    )
    calls = Calls(layer, batch, length, blank.window, predict(truth, blank, GPUS["h200_sxm"]))

    found = fit(PrefillAttentionCurve, PREFILL_RANGES, calls, GPUS["h200_sxm"], {})

    assert np.allclose(predict(found, calls, GPUS["h200_sxm"]), calls.seconds, rtol=0.01)


def test_the_share_of_wide_heads_is_the_one_that_made_their_long_calls() -> None:
    """Heads of 256 that reach 0.6 of the peak, where the curve of the others gives 0.65, are found to 1 %."""
    batch, length, num = (grid.ravel() for grid in np.meshgrid([1.0, 4], [1024.0, 8192, 16384], [8.0, 16, 32]))
    layer = Heads(num_heads=num, num_kv_heads=np.full_like(num, 8.0), width=256.0, kv_bytes=8192.0)
    curve = PrefillAttentionCurve.model_construct(
        start=12e-6, compute=0.7, extra_width=20.0, query_element=3e-12, kv_element=5e-12, tile_compute=1.5, wave=1e-6
    )
    blank = Calls(layer, batch, length, np.full_like(batch, np.inf), np.ones_like(batch))
    slow = predict(curve.model_copy(update={"wide_compute": 0.6}), blank, GPUS["h200_sxm"])
    calls, usual = (
        Calls(layer, batch, length, blank.window, seconds)
        for seconds in (slow, predict(curve.model_copy(update={"wide_compute": 0.9}), blank, GPUS["h200_sxm"]))
    )

    found = wide_share(calls, GPUS["h200_sxm"], curve)

    assert found is not None
    assert abs(found - 0.6) < 0.006
    assert wide_share(usual, GPUS["h200_sxm"], curve) is None, "no less than the curve gives"
