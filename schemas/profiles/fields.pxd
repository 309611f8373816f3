# C types of fields.py, for a wheel in which it is compiled (hatch_build.py).

cimport cython


@cython.locals(found=dict, n=Py_ssize_t)
cdef _count(object members, str prefix, dict counted)
