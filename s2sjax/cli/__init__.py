"""The command line.

main             runs a command, and explains its errors
arguments        the commands and their options
commands         what each command does
align_command    what `s2sjax align` does
overrides        settings that the command line changes
standard_input   lines as they arrive
start_jax        devices, threads and processes
launch           several processes on one machine
doctor           what is installed, and what is missing
"""
