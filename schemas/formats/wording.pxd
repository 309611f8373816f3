# C types of wording.py, for a wheel in which it is compiled (hatch_build.py).

cimport cython


@cython.locals(pieces=list, done=Py_ssize_t, start=Py_ssize_t, held=str)
cpdef wording(str text, object actions)

@cython.locals(held=list)
cdef list _held(object actions)
