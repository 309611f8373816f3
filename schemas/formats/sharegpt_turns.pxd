# C types of sharegpt_turns.py, for a wheel in which it is compiled (hatch_build.py).

cimport cython


@cython.locals(texts=list, turn=dict)
cpdef list read_texts(object turns)
