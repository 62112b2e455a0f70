"""`paragauge import`: `python bench/import …`. What does it is a package of a name that no user's module has."""

import sys

from paragauge_import.import_model import main

sys.exit(main())
