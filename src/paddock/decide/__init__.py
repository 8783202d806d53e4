"""Request → Decision. Execs are judged by the core; here is only the question and its answer."""

from paddock.decide.execs import Decision, Exec, Judged, RuleOf, judge_exec

__all__ = ["Decision", "Exec", "Judged", "RuleOf", "judge_exec"]
