"""Many short jobs while workers, runners, the server and ``up`` are killed or stopped: nothing lost, nothing twice."""
