# C types of react.py, for a wheel in which it is compiled (hatch_build.py).

cimport cython


cdef tuple _parted(str text)

@cython.locals(found=slice, end=Py_ssize_t, label=str, place=Py_ssize_t, line=Py_ssize_t)
cdef slice _label(str text, tuple labels, Py_ssize_t start=*)

@cython.locals(labelled=str)
cdef str _thought(str text)
