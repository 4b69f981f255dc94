import sys

from ._files import main

sys.exit(main())
