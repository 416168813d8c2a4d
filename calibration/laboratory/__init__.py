"""The project's own laboratory: readers of its measurement tables, fits of its catalogue, scores of its predictions.

It stands beside the package and is not installed with it: `simserve validate --data` finds it in a checkout
(`simserve.planner.validation.validate`). Users' own fits (`simserve calibrate`) need nothing of it.
"""
