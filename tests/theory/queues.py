"""Mean waits that queueing theory gives in closed form. Units are the caller's; it knows no simulator.

Kleinrock, Queueing Systems I (1975): M/G/1 in 5.7, GI/M/1 in 6.4, M/M/c in 3.5.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq


def pollaczek_khinchine(rate: float, mean: float, second_moment: float) -> float:
    """Return the mean wait of M/G/1, ``rate E[S^2] / (2 (1 - rate E[S]))``.

    Args:
        rate: Poisson arrivals a unit of time.
        mean: Mean service time E[S].
        second_moment: E[S^2].
    """
    return rate * second_moment / (2 * (1 - rate * mean))


def erlang_c(rate: float, mean: float, num_servers: int) -> float:
    """Return the mean wait of M/M/c: the chance that all servers are busy, over ``c / mean - rate``."""
    load = rate * mean
    utilization = load / num_servers
    all_busy = load**num_servers / math.factorial(num_servers) / (1 - utilization)
    some_free = sum(load**busy / math.factorial(busy) for busy in range(num_servers))
    return all_busy / (some_free + all_busy) * mean / (num_servers * (1 - utilization))


def erlang_arrivals(rate: float, mean: float, num_stages: int) -> float:
    """Return the mean wait of E_k/M/1, from the root of ``sigma = A*((1 - sigma) / mean)`` in (0, 1).

    ``A*(s) = (k rate / (k rate + s))^k`` is the Laplace transform of an Erlang-k gap of mean ``1 / rate``; the
    wait is ``sigma mean / (1 - sigma)``.

    Args:
        rate: Arrivals a unit of time at the server.
        mean: Mean of the exponential service time.
        num_stages: Stages k of the gaps: a round robin over k servers leaves each of them every k-th arrival.
    """
    stage_rate = num_stages * rate

    def excess(sigma: float) -> float:
        return (stage_rate / (stage_rate + (1 - sigma) / mean)) ** num_stages - sigma

    sigma = brentq(excess, 0.0, 1.0 - 1e-6, xtol=1e-14)
    return sigma * mean / (1 - sigma)
