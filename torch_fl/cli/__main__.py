"""`python -m torch_fl.cli` is `flagos-torch-fl`."""

import sys

from torch_fl.cli import main

sys.exit(main())
