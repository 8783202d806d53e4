"""probes → Host."""

from paddock.host.measure import measure, try_everything
from paddock.host.model import Host, Probe

__all__ = ["Host", "Probe", "measure", "try_everything"]
