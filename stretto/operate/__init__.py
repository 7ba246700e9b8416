"""What people who run a door for others look at: metrics, log lines, and where the time of programs went.

All of it is fed by one observer interface (`sched/observer.py`), whichever door a request came through.

Internal: it may change with any release.
"""
