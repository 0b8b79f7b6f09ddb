"""``python -m edl_agent``: the same as the ``edl-agent`` command."""

import sys

from edl_agent.cli import main

sys.exit(main())
