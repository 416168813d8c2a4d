"""The project's own laboratory: readers of its measurement tables, fits of its catalogue, scores of its predictions.

It is part of a checkout and not installed with the package: `simserve validate --data` finds it there
(`simserve.planner.validation.validate`). Users' own fits (`simserve calibrate`) do not need it.
"""
