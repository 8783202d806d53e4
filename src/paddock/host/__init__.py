"""Probes become a Host; the paths of a policy become a Terrain."""

from paddock.host.facts import Host, Probe, Usable
from paddock.host.grant_targets import Terrain, scan_grant_targets
from paddock.host.measure import measure, try_everything

__all__ = [
    "Host",
    "Probe",
    "Terrain",
    "Usable",
    "measure",
    "scan_grant_targets",
    "try_everything",
]
