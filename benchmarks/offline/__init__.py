"""Running plans: what is predicted beside what is measured, and our planner beside the heuristics."""
