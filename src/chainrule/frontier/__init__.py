"""Quality against speed: every decoding method of some trained runs, measured on the same workload."""
