"""Running a program that nobody trusts: no network, no files but the standard library, no second process, bounded time,
memory and output. `roles.sandbox.program.run_program` is what others call; the rest is how the kernel is made to hold it.

Nothing is imported here: the confined interpreter passes through this package and must start quickly.
"""
