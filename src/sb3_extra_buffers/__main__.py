"""`python -m sb3_extra_buffers`."""

import sys

from sb3_extra_buffers.cli import main

sys.exit(main())
