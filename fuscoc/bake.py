"""Plans of static shuffles, made when compiling.

A shuffle is *static* if its relation loads no input and its extents are constants or functions of `rank` and `ranks`.
Then the whole plan follows from the spec and the topology, so the compiler makes it once for each topology it is given
and stores it in the artifact: such a shuffle evaluates no relation and exchanges no metadata when it runs.
"""
