"""Prepares one container, from the request to the core. The documented order is: the profile, then
the user, then the rest.
"""

from __future__ import annotations

from dataclasses import replace

from paddock.host import Terrain, measure
from paddock.host.accounts import look_up
from paddock.launch.prepare import Prepared, remember_journal
from paddock.plan.container_plan import ContainerSection, compile_container
from paddock.policy import Origin, Request, load
from paddock.policy.load import writable_trees
from paddock.policy.trust.writable_history import WritableHistory


def prepare_container(request: Request, origin: Origin, *, to_run: bool = False) -> Prepared:
    """``to_run``: the command will be able to write the root directory, so it is recorded for later
    runs.
    """
    policy = load(request, origin)
    asked = ContainerSection(settings=policy.container)
    asked.required("rootdir", "--rootdir DIR")
    username = asked.required("username", "-U NAME")
    accounts = look_up(username, where=asked.where("username"), uid=origin.uid, user=origin.user)
    host = measure(
        uid=origin.uid,
        user=origin.user,
        home=origin.home,
        cwd=origin.cwd,
        previously_writable=(),
        journals=origin.journals.paths,
        search_path=origin.environ.get("PATH", ""),
    )
    plan = compile_container(policy, host, accounts)
    journals = remember_journal(policy, plan, origin) if to_run else origin.journals
    writable_history = (
        WritableHistory.record(origin.state_dir, writable_trees(policy))
        if to_run
        else origin.writable_history
    )
    host = replace(host, previously_writable=writable_history.trees)
    return Prepared(
        policy=policy,
        host=host,
        writable_history=writable_history,
        terrain=Terrain(),
        journals=journals,
        plan=plan,
    )
