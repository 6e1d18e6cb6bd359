"""The operating-system layer: processes, signals, locks, ports, devices and files of one machine."""
