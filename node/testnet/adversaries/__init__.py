"""Workers that cheat, each in one way, for testnets (`--adversary`), benchmarks and
tests. No honest role imports this."""
