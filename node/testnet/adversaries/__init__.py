"""Workers that cheat, one way each: for testnets (`--adversary`), benchmarks and tests. No honest role imports this."""
