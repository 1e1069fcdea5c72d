from kit.api.handle import RunHandle as RunHandle
from kit.api.python import find as find
from kit.api.python import load as load
from kit.api.python import render as render
from kit.api.python import submit as submit
from kit.base.errors import KitError as KitError
from kit.base.errors import KitWarning as KitWarning
from kit.base.errors import TimedOut as TimedOut
from kit.base.errors import UsageError as UsageError

__version__: str
