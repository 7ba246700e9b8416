"""What emulated servers cost: lag behind schedule, memory, and distance from the simulator."""
