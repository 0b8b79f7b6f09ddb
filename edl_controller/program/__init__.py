"""The program `edl-controller`: settings, connections, election, health, metrics, a clean end."""
