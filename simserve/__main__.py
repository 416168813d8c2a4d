"""`python -m simserve` is `simserve`."""

import sys

from simserve.cli.main import main

sys.exit(main())
