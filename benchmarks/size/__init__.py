"""The capacities that sizing predicts, beside emulated servers."""
