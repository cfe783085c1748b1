"""Runs untrusted programs: no network, no files but the standard library, no second process, bounded time, memory and
output. Others call `roles.sandbox.program.run_program`; the rest makes the kernel enforce the limits.

Nothing is imported here, because the confined interpreter passes through this package and must start quickly.
"""
