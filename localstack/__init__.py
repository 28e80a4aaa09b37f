"""Real servers for tests and demonstrations, as plain processes; no container engine needed."""
