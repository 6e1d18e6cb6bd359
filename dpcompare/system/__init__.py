"""The ground: processes, signals, locks, ports, devices and files of one machine."""
