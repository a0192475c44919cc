"""Many trainings as one program, and the table of their results.

sweep_grid        the members of a sweep: which settings each of them has
cohorts           members that share a program, and how many of them fit in memory
sweep             trains the members and evaluates them
sweep_results     the result of a sweep: a row for each combination of settings, over its seeds
"""
